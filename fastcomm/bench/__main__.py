"""Entry point of ``python -m fastcomm.bench``."""

import sys

from fastcomm.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

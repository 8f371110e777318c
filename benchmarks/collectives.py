"""Measure the collectives; the same as ``fastcomm bench``, with all its options."""

import sys

from fastcomm.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

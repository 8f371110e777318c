"""Measure the collectives as ``fastcomm bench`` does, with all its options, and more beside them.

``--backends`` also knows ``floor``, ``single-copy``, ``mpi`` and ``deepspeed`` (`peers`).
"""

import sys

from peers import register

from fastcomm.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], register, "python benchmarks/collectives.py"))

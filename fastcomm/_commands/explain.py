"""``fastcomm explain``: which path operations take, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from fastcomm._commands import words
from fastcomm._commands.common import guarded, is_ready, positive

REDUCTIONS = ("sum", "avg", "premul_sum", "product", "min", "max", "band", "bor", "bxor")


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    return guarded("fastcomm explain", lambda: _explain(argv))


def _explain(argv: Sequence[str]) -> int:
    import torch

    from fastcomm import _native, explain

    operations = _native.load().operations()
    parser = argparse.ArgumentParser(
        prog="fastcomm explain",
        description="Which path an operation takes, and why.",
        epilog=f"Operations: {', '.join(operations)}.",
    )
    parser.add_argument(
        "operation",
        nargs="*",
        type=lambda word: words.name_of(word, operations, "operation"),
        help="as all_reduce; none: all of them",
    )
    parser.add_argument(
        "--size", type=words.size, default=4, help="bytes a rank, as 64K or 25MB (4)"
    )
    parser.add_argument(
        "--dtype",
        type=words.dtype,
        default="float32",
        help="torch's name of the type, or a short one as bf16 (float32)",
    )
    parser.add_argument(
        "--op",
        type=lambda word: words.name_of(word, REDUCTIONS, "reduction", words.REDUCTION_ALIASES),
        default="sum",
        metavar="REDUCTION",
        help=f"{', '.join(REDUCTIONS)} (sum)",
    )
    parser.add_argument("--world-size", type=positive, default=2, help="ranks of the group (2)")
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")
    options = parser.parse_args(argv)
    if not is_ready("fastcomm explain"):
        return 2
    dtype = getattr(torch, options.dtype)
    for operation in options.operation or operations:
        told = explain(
            operation,
            op=options.op,
            count=-(-options.size // dtype.itemsize),
            dtype=dtype,
            world_size=options.world_size,
        )
        print(json.dumps(asdict(told)) if options.json else told)
    return 0

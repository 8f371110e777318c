"""``fastcomm explain``: which path operations take, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from fastcomm._commands.common import positive
from fastcomm.bench.units import parse_size

REDUCTIONS = ("sum", "avg", "premul_sum", "product", "min", "max", "band", "bor", "bxor")


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    import torch

    from fastcomm import explain
    from fastcomm._distributed import backend

    operations = backend.load().operations()
    parser = argparse.ArgumentParser(
        prog="fastcomm explain",
        description="Which path an operation takes, and why.",
        epilog=f"Operations: {', '.join(operations)}.",
    )
    parser.add_argument("operation", nargs="*", help="as all_reduce; none: all of them")
    parser.add_argument("--size", type=_size, default=4, help="bytes a rank, as 64K or 25M (4)")
    parser.add_argument("--dtype", default="float32", help="torch's name of the type (float32)")
    parser.add_argument("--op", default="sum", choices=REDUCTIONS, help="reduction (sum)")
    parser.add_argument("--world-size", type=positive, default=2, help="ranks of the group (2)")
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")
    options = parser.parse_args(argv)
    dtype = getattr(torch, options.dtype, None)
    if not isinstance(dtype, torch.dtype):
        parser.error(f"{options.dtype!r} is no dtype of torch")
    unknown = [name for name in options.operation if name not in operations]
    if unknown:
        parser.error(f"no operation: {', '.join(unknown)}; known: {', '.join(operations)}")
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


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None

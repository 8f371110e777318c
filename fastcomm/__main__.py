"""``python -m fastcomm {env,explain,check,tune,bench,run}``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from fastcomm.bench.units import parse_size


def _env(arguments: argparse.Namespace) -> int:
    from fastcomm import env

    found = env.collect()
    print(json.dumps(found, indent=2, default=str) if arguments.json else env.format_text(found))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    import torch

    from fastcomm import backend, explain

    dtype = getattr(torch, arguments.dtype, None)
    if not isinstance(dtype, torch.dtype):
        print(f"{arguments.dtype!r} is no dtype of torch", file=sys.stderr)
        return 2
    count = -(-arguments.size // dtype.itemsize)
    for operation in arguments.operation or backend.load().operations():
        print(
            explain(
                operation,
                op=arguments.op,
                count=count,
                dtype=dtype,
                world_size=arguments.world_size,
            )
        )
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments_left = list(sys.argv[1:] if argv is None else argv)
    if arguments_left[:1] == ["bench"]:
        from fastcomm.bench.cli import main as bench

        return bench(arguments_left[1:])
    if arguments_left[:1] == ["check"]:
        from fastcomm.check.cli import main as check

        return check(arguments_left[1:])
    if arguments_left[:1] == ["tune"]:
        from fastcomm.tune.cli import main as tune

        return tune(arguments_left[1:])
    if arguments_left[:1] == ["run"]:
        from fastcomm._run import main as run

        return run(arguments_left[1:])
    parser = argparse.ArgumentParser(prog="python -m fastcomm", description=__doc__)
    commands = parser.add_subparsers(required=True)

    env = commands.add_parser("env", help="versions, build, processor, CUDA devices and settings")
    env.add_argument("--json", action="store_true", help="print JSON")
    env.set_defaults(run=_env)

    explain = commands.add_parser("explain", help="which path an operation takes, and why")
    explain.add_argument("operation", nargs="*", help="as all_reduce (default: all native ones)")
    explain.add_argument("--size", type=parse_size, default=4, help="bytes a rank, as 64K or 25M")
    explain.add_argument("--dtype", default="float32", help="torch's name of the element type")
    explain.add_argument("--op", default="sum", help="reduction, as sum, avg, min or band")
    explain.add_argument("--world-size", type=int, default=2, help="ranks of the group")
    explain.set_defaults(run=_explain)

    commands.add_parser("bench", help="measure against other backends; 'bench --help' for more")
    commands.add_parser("check", help="try every way between ranks here; 'check --help' for more")
    commands.add_parser("tune", help="measure what suits this machine; 'tune --help' for more")
    commands.add_parser("run", help="run a script on fastcomm; 'run --help' for more")
    arguments = parser.parse_args(arguments_left)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())

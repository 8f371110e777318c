"""``fastcomm run script.py ...``: run a script on fastcomm without editing it."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from fastcomm import _register
from fastcomm._commands.common import is_ready


def build_parser() -> argparse.ArgumentParser:
    """The command line of run, for its help: what follows the script's name is the script's."""
    parser = argparse.ArgumentParser(
        prog="fastcomm run",
        usage="fastcomm run [-h] {script.py | -m module} [argument ...]",
        description="Run a script as python would, with fastcomm in place of torch's own: "
        "torch.nn.parallel and torch.cuda.comm are fastcomm's, and init_process_group and "
        "new_group take fastcomm where the script asks for gloo and, on a machine without GPUs, "
        "for nccl.",
        epilog="For several ranks: torchrun --nproc-per-node 2 -m fastcomm run script.py",
    )
    parser.add_argument("script", nargs="?", metavar="script.py", help="the script to run")
    parser.add_argument("-m", dest="module", metavar="module", help="or a module, as python -m")
    parser.add_argument("argument", nargs="*", help="passed on to it, options too")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run a script as ``python`` would, with fastcomm's primitives in place of torch's.

    ``torch.nn.parallel`` and ``torch.cuda.comm`` are ours (see `fastcomm.use`), and
    ``init_process_group`` and ``new_group`` take fastcomm where the script says gloo and, on a
    machine without GPUs, where it says nccl. With GPUs a script that asks for NCCL gets it. Workers
    that it starts by multiprocessing or ``torch.multiprocessing`` follow, whatever the start
    method.
    """
    as_module = list(argv[:1]) == ["-m"]
    rest = list(argv[1:] if as_module else argv)
    if not rest:
        build_parser().error("-m needs a module" if as_module else "there is no script to run")
    if rest[0].startswith("-"):
        build_parser().parse_args(rest[:1])  # --help, or an option that is not there
        build_parser().error(f"{rest[0]} is no script")

    if not as_module and not os.path.isfile(rest[0]):
        print(f"fastcomm run: there is no file {rest[0]}", file=sys.stderr)
        return 2
    if not is_ready("fastcomm run"):
        return 2

    from fastcomm._take_over import take_over

    take_over()
    os.environ[_register.RUN] = "1"
    if os.environ.get("RANK", "0") == "0":
        print(
            "fastcomm run: torch.nn.parallel and torch.cuda.comm are fastcomm's, "
            f"and so is a process group that asks for {_taken()}",
            file=sys.stderr,
        )
    sys.argv = rest
    if as_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(rest[0])))
        runpy.run_path(rest[0], run_name="__main__")
    return 0


def _taken() -> str:
    import torch

    return "gloo; nccl stays" if torch.cuda.is_available() else "gloo or nccl"

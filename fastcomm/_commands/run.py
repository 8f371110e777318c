"""``fastcomm run script.py ...``: run a script on fastcomm without editing it."""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

USAGE = "usage: fastcomm run {script.py | -m module} [argument ...]"


def main(argv: Sequence[str]) -> int:
    """Run a script as ``python`` would, with fastcomm's primitives in place of torch's.

    ``torch.nn.parallel`` and ``torch.cuda.comm`` are ours (see `fastcomm.use`), and
    ``init_process_group`` takes fastcomm where the script says gloo and, on a machine without GPUs,
    where it says nccl. With GPUs a script that asks for NCCL gets it.
    """
    as_module = list(argv[:1]) == ["-m"]
    rest = list(argv[1:] if as_module else argv)
    if not rest or rest[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if rest else sys.stderr)
        return 0 if rest else 2

    if not as_module and not os.path.isfile(rest[0]):
        print(f"fastcomm run: there is no file {rest[0]}", file=sys.stderr)
        return 2

    import fastcomm

    _take_over_gloo()
    if os.environ.get("RANK", "0") == "0":
        print(
            "fastcomm run: torch.nn.parallel and torch.cuda.comm are fastcomm's, "
            f"and so is a process group that asks for {_taken()}",
            file=sys.stderr,
        )
    sys.argv = rest
    with fastcomm.use():
        if as_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(rest[0])))
            runpy.run_path(rest[0], run_name="__main__")
    return 0


def instead_of(backend: Any, *, has_cuda: bool) -> Any:
    """Return the backend to take where a script asks for ``backend``."""
    if backend is None:
        return None if has_cuda else "fastcomm"
    ours = ("gloo",) if has_cuda else ("gloo", "nccl")
    parts = []
    for part in str(backend).lower().split(","):
        device, colon, name = part.rpartition(":")
        parts.append(device + colon + ("fastcomm" if name in ours else name))
    return ",".join(parts) if "fastcomm" in "".join(parts) else backend


def _taken() -> str:
    import torch

    return "gloo; nccl stays" if torch.cuda.is_available() else "gloo or nccl"


def _take_over_gloo() -> None:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    theirs = dist.init_process_group

    @functools.wraps(theirs)
    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> Any:
        chosen = instead_of(backend, has_cuda=torch.cuda.is_available())
        return theirs(chosen, *arguments, **options)

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group

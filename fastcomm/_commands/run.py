"""``fastcomm run script.py ...``: run a script on fastcomm without editing it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from fastcomm import _register
from fastcomm._commands.common import guarded, is_file, is_ready, positive, with_script
from fastcomm._launch.script import run_script

WITH_VALUE = ("--nproc", "--nproc-per-node", "--nproc_per_node")


def build_parser() -> argparse.ArgumentParser:
    """The command line of run, for its help: what follows the script's name is the script's."""
    parser = argparse.ArgumentParser(
        prog="fastcomm run",
        usage="fastcomm run [-h] [--nproc N [--bind]] {script.py | -m module} [argument ...]",
        description="Run a script as python would, with fastcomm in place of torch's own: "
        "torch.nn.DataParallel, its functions and torch.cuda.comm are fastcomm's, and "
        "init_process_group and new_group take fastcomm where the script asks for gloo and, on a "
        "machine without GPUs, for nccl.",
        epilog="Under torchrun: torchrun --nproc-per-node 2 -m fastcomm run script.py",
    )
    parser.add_argument(
        *WITH_VALUE,
        dest="ranks",
        type=positive,
        metavar="N",
        help="start N ranks on this host, as torchrun would; without it this process is the one",
    )
    parser.add_argument(
        "--bind",
        action="store_true",
        help="bind each of them to cores of its own: whole ones, of one NUMA node if possible",
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

    With ``--nproc`` processes are started that do this, each as a rank. The exit status is that of
    the rank that failed first, 128 and its number for a signal, 130 for Ctrl-C, or 0.
    """
    parser = build_parser()
    options, rest, as_module = with_script(parser, argv, WITH_VALUE)
    if options.bind and options.ranks is None:
        parser.error("--bind needs --nproc")

    if not is_file("fastcomm run", rest, as_module) or not is_ready("fastcomm run"):
        return 2
    if options.ranks is not None:
        words = ["-m", *rest] if as_module else rest
        return guarded("fastcomm run", lambda: _ranks(words, options.ranks, options.bind))
    return _script(rest, as_module)


def _ranks(words: Sequence[str], ranks: int, bind: bool) -> int:
    """Start ranks that run a script each, wait for them, and return the exit status."""
    from fastcomm._launch import errors, processes
    from fastcomm._machine import division, topology

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # ends the ranks, too

    signal.signal(signal.SIGTERM, end)
    outcome = processes.run(
        processes.Task(words=["fastcomm", "run", *words], runs=True),
        division.divide(topology.cpus(), ranks, topology.quota()),
        bind=bind,
        environment={},
        interrupted_s=processes.OTHERS_S,
    )
    if not outcome.failures:
        return 0
    told = errors.in_order(outcome.failures)
    for failure in told:
        print(f"fastcomm run: rank {failure.rank}: {failure.text}", file=sys.stderr)
    if outcome.ended:
        others = ", ".join(map(str, outcome.ended))
        print(f"fastcomm run: ended because of that: rank {others}", file=sys.stderr)
    return told[0].status


def _script(rest: Sequence[str], as_module: bool) -> int:
    """Run a script, or a module, in this process."""
    from fastcomm._take_over import take_over

    take_over()
    os.environ[_register.RUN] = f"-m {rest[0]}" if as_module else os.path.abspath(rest[0])
    if os.environ.get("RANK", "0") == "0":
        print(
            "fastcomm run: torch.nn.DataParallel, its functions and torch.cuda.comm are "
            f"fastcomm's, and so is a process group that asks for {_taken()}",
            file=sys.stderr,
        )
    run_script(rest, as_module)
    return 0


def _taken() -> str:
    import torch

    return "gloo; nccl stays" if torch.cuda.is_available() else "gloo or nccl"

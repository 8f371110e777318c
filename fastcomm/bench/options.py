"""The options of ``fastcomm bench``, and what they may be."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fastcomm._commands import words
from fastcomm._commands.common import count, positive, seconds
from fastcomm.bench.records import STDOUT

DEFAULT_OPS = "all_reduce,all_reduce_shared,broadcast,all_gather,barrier"
DEFAULT_SIZES = "8:64M:8"
HOSTS_SIZES = "8,64K,1M,25M"
# What --hosts decides itself, or does not show.
_NOT_OF_HOSTS = (
    "ops", "reduction", "ranks", "dtype", "device", "backends",
    "out", "csv", "summary", "plot", "table",
)  # fmt: skip
_HOSTS_START = (
    "on each host: torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d "
    "--rdzv-endpoint HOST0:29500 -m fastcomm bench --hosts"
)


def build_parser(name: str = "fastcomm bench") -> argparse.ArgumentParser:
    """The options; sizes are checked while parsing."""
    parser = argparse.ArgumentParser(
        prog=name,
        description="Measure collectives over several backends, interleaved in one run. "
        "The last backend is the baseline of the ratio.",
    )
    parser.add_argument(
        "--ops", type=_names, help=f"A,B,...; all; with --table those to show ({DEFAULT_OPS})"
    )
    parser.add_argument(
        "--sizes",
        type=words.sizes,
        metavar="A,B,...",
        help="in bytes, with K, M, G for binary units; a range is MIN:MAX:FACTOR or MIN:MAX:+STEP; "
        f"with --table those to show ({DEFAULT_SIZES})",
    )
    parser.add_argument(
        "--reduction",
        type=_names,
        default=("sum",),
        metavar="A,B,...",
        help="of what reduces: sum, avg, max, ... (sum)",
    )
    parser.add_argument(
        "--ranks",
        type=positive,
        help="processes to start (2; on GPUs one for each, at least 2). Under torchrun its "
        "processes are the ranks, and rank 0 prints",
    )
    parser.add_argument(
        "--dtype",
        type=words.dtypes,
        default=("float32",),
        metavar="A,B,...",
        help="types of elements, torch's names or short ones as bf16, measured in turns (float32)",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="{cpu,cuda}",
        help="where tensors lie. cuda: rank r has GPU r, or shares one where there are fewer (cpu)",
    )
    parser.add_argument(
        "--backends",
        type=_names,
        help="A,B,... (fastcomm,gloo; on GPUs fastcomm,symm_mem_two_shot,nccl); also fake: "
        "torch's that does nothing",
    )
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="measure the links between the hosts that the job runs on, and what each level of an "
        f"all_reduce takes, at some sizes ({HOSTS_SIZES}); under torchrun, on several hosts",
    )
    parser.add_argument(
        "--budget", type=seconds, default=75.0, metavar="SECONDS", help="for measuring, in all (75)"
    )
    parser.add_argument(
        "--iterations", type=positive, default=0, metavar="N", help="of each row, instead"
    )
    parser.add_argument(
        "--warm-up",
        type=count,
        metavar="N",
        help="calls that are not timed before each of the five batches of a row",
    )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare results exactly before and after each measurement (on)",
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        "--out", type=Path, metavar="DIR", help="write JSON lines and a plot into this folder"
    )
    kept.add_argument(
        "--json", type=Path, metavar="FILE", help="write JSON lines into this file; -: print them"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write rows as CSV into this file; -: print them"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="no table and no progress, which need more packages"
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="tables have a line for each operation and size, with the medians of all backends",
    )
    parser.add_argument("--style", default="simple", help="table style: simple, github, ...")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="only plot a result file; into --out DIR, or beside it",
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="only print a result file; with --csv, as CSV"
    )
    return parser


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill in what depends on the machine; wrong options are one line and exit status 2."""
    import torch.distributed as dist

    # Only now, so that --help and --plot do not pay for importing torch.distributed.
    from fastcomm._measure.cases import CASES, REDUCTIONS
    from fastcomm._measure.launch import running_job
    from fastcomm._measure.line_up import registered, starter
    from fastcomm._measure.timing import UNTIMED_PER_BATCH

    if options.warm_up is None:
        options.warm_up = UNTIMED_PER_BATCH
    if options.hosts:
        if (job := running_job()) is None:
            parser.error(f"--hosts needs a job that runs on several hosts: start it {_HOSTS_START}")
        options.ops, options.backends, options.ranks = ("all_reduce",), (), job[1]
        options.sizes = options.sizes or words.sizes(HOSTS_SIZES)
        return
    options.ops = options.ops or _names(DEFAULT_OPS)
    options.sizes = options.sizes or words.sizes(DEFAULT_SIZES)
    if options.ops == ("all",):
        options.ops = tuple(CASES)
    known = sorted({*registered(), *dist.Backend.backend_list} - {dist.Backend.UNDEFINED})
    aliases = words.REDUCTION_ALIASES
    try:
        options.ops = _known(options.ops, CASES, "operation")
        options.reduction = _known(options.reduction, REDUCTIONS, "reduction", aliases)
        options.backends = _known(options.backends or (), known, "backend")
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if not options.reduction:
        parser.error(f"--reduction needs a name; known: {', '.join(REDUCTIONS)}")
    if options.device != "cpu":
        from fastcomm._devices.slots import served

        if options.device not in ("cuda", served()):
            parser.error(f"--device {options.device}: may be cpu or {served()}")
        import torch

        module = torch.get_device_module(options.device)
        if not module.is_available():
            parser.error(f"--device {options.device}: torch finds no GPU here")
        options.ranks = options.ranks or max(2, module.device_count())
    if job := running_job():
        if options.ranks not in (None, job[1]):
            parser.error(f"--ranks {options.ranks}: the job that this is one of has {job[1]}")
        options.ranks = job[1]
    options.ranks = options.ranks or 2
    options.backends = options.backends or _default_backends(options.device)
    if job and starter(options.backends):
        parser.error(f"--backends {','.join(options.backends)}: one starts ranks of its own")


def check_hosts(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options that make no sense with --hosts, before any of them counts."""
    given = [name for name in _NOT_OF_HOSTS if getattr(options, name) != parser.get_default(name)]
    if options.hosts and given:
        parser.error(f"--hosts has no --{given[0]}")


def check_places(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse files that exist, and folders that cannot be written to."""
    files = [path for path in (options.json, options.csv) if path and path != STDOUT]
    for folder in [*(path.parent for path in files), *([options.out] if options.out else [])]:
        if not os.access(_existing(folder), os.W_OK):
            parser.error(f"{folder} cannot be written to")
    for path in files:
        if path.exists():
            parser.error(f"{path} exists; results are never overwritten")


def _existing(folder: Path) -> Path:
    """Return a folder, or the one in which it will be made."""
    return folder if folder.exists() or folder.parent == folder else _existing(folder.parent)


def _default_backends(device: str) -> tuple[str, ...]:
    return ("fastcomm", "gloo") if device == "cpu" else ("fastcomm", "symm_mem_two_shot", "nccl")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _known(
    names: Sequence[str],
    known: Collection[str],
    what: str,
    aliases: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    return tuple(words.name_of(name, known, what, aliases) for name in names)

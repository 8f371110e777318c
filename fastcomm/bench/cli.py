"""Command line of the harness: ``python -m fastcomm bench`` or ``python -m fastcomm.bench``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fastcomm._commands.common import positive, seconds
from fastcomm.bench.records import STDOUT, Records, RecordWriter, read_records
from fastcomm.bench.units import format_size, parse_sizes

DEFAULT_OPS = "all_reduce,all_reduce_shared,broadcast,all_gather,barrier"
DEFAULT_SIZES = "8:64M:8"
_NEEDED = ("tabulate", "tqdm", "matplotlib")


def build_parser() -> argparse.ArgumentParser:
    """The options; sizes are checked while parsing."""
    parser = argparse.ArgumentParser(
        prog="fastcomm bench",
        description="Measure collectives over several backends, interleaved in one run. "
        "The last backend is the baseline of the ratio.",
    )
    parser.add_argument(
        "--ops", type=_names, help=f"A,B,...; all; with --table those to show ({DEFAULT_OPS})"
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="A,B,...",
        help="in bytes, with K, M, G for binary units; a range is MIN:MAX:FACTOR or MIN:MAX:+STEP; "
        f"with --table those to show ({DEFAULT_SIZES})",
    )
    parser.add_argument(
        "--ranks", type=positive, help="processes to start (2; on GPUs one for each, at least 2)"
    )
    parser.add_argument(
        "--dtype",
        type=_names,
        default=("float32",),
        metavar="A,B,...",
        help="types of elements, names in torch, measured in turns (float32)",
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
        help="A,B,... (fastcomm,gloo; on GPUs fastcomm,symm_mem_two_shot,nccl); also floor: a bare "
        "program of the same steps, single-copy: the same by process_vm_readv, mpi (mpi4py), "
        "deepspeed, and fake: torch's that does nothing",
    )
    parser.add_argument(
        "--budget", type=seconds, default=75.0, metavar="SECONDS", help="for measuring, in all (75)"
    )
    parser.add_argument(
        "--iterations", type=positive, default=0, metavar="N", help="of each row, instead"
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
        "--quiet", action="store_true", help="no table and no progress, which need more packages"
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="tables have a line for each operation and size, with the medians of all backends",
    )
    parser.add_argument("--style", default="simple", help="table style: simple, github, ...")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="only plot a result file")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print a result file")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status.

    0 if all went well; 1 with the reason on standard error if not; 2 for wrong options, packages
    that are missing, and files that cannot be written.
    """
    parser = build_parser()
    options = parser.parse_args(argv)
    shows = options.table or options.plot
    options.quiet = options.quiet or options.json == STDOUT
    if not shows:
        _check(parser, options)
    needed = () if options.quiet and not (options.out or shows) else _NEEDED
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"this needs more packages: pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    if needed and options.style not in _styles():
        parser.error(f"--style {options.style}: known are {', '.join(_styles())}")
    if shows:
        return _show(options)
    return _run(options, ["python -m fastcomm bench", *argv])


def _styles() -> list[str]:
    from tabulate import tabulate_formats

    return sorted(tabulate_formats)


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill in what depends on the machine; wrong options are one line and exit status 2."""
    import torch
    import torch.distributed as dist

    # Only now, so that --help and --plot do not pay for importing torch.distributed.
    from fastcomm.bench.cases import CASES
    from fastcomm.bench.line_up import OTHERS

    options.ops = options.ops or _names(DEFAULT_OPS)
    options.sizes = options.sizes or _sizes(DEFAULT_SIZES)
    if options.ops == ("all",):
        options.ops = tuple(CASES)
    unknown = [op for op in options.ops if op not in CASES]
    if unknown:
        parser.error(f"unknown operation {', '.join(unknown)}; known: {', '.join(CASES)}")
    wrong = [name for name in options.dtype if not isinstance(getattr(torch, name, 0), torch.dtype)]
    if wrong or not options.dtype:
        parser.error(f"--dtype {', '.join(wrong)}: torch has no such type")
    if options.device != "cpu":
        from fastcomm._devices.slots import served

        if options.device not in ("cuda", served()):
            parser.error(f"--device {options.device}: may be cpu or {served()}")
        module = torch.get_device_module(options.device)
        if not module.is_available():
            parser.error(f"--device {options.device}: torch finds no GPU here")
        options.ranks = options.ranks or max(2, module.device_count())
    options.ranks = options.ranks or 2
    options.backends = options.backends or _default_backends(options.device)
    known = {*OTHERS, *dist.Backend.backend_list} - {dist.Backend.UNDEFINED}
    if unknown := [name for name in options.backends if name not in known]:
        parser.error(f"no backend: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    if options.json == STDOUT:
        return
    folder = options.out or (options.json and options.json.parent)
    if folder and not os.access(_existing(folder), os.W_OK):
        parser.error(f"{folder} cannot be written to")
    if options.json and options.json.exists():
        parser.error(f"{options.json} exists; results are never overwritten")


def _existing(folder: Path) -> Path:
    """Return a folder, or the one in which it will be made."""
    return folder if folder.exists() or folder.parent == folder else _existing(folder.parent)


def _run(options: argparse.Namespace, command: list[str]) -> int:
    from fastcomm.bench.by_mpiexec import StartError
    from fastcomm.bench.environment import describe, summary_line
    from fastcomm.bench.launch import RankError
    from fastcomm.bench.plot import write_plot
    from fastcomm.bench.sweep import SweepOptions

    sweep = SweepOptions(
        ops=options.ops,
        sizes=tuple(options.sizes),
        backends=options.backends,
        device=options.device,
        ranks=options.ranks,
        dtypes=options.dtype,
        budget_s=options.budget,
        iterations=options.iterations,
        check=options.check,
    )
    rows: list[dict[str, object]] = []
    stem = f"bench-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    path = options.out / f"{stem}.jsonl" if options.out else options.json
    try:
        with RecordWriter(path, command) if path else nullcontext() as writer:
            environment = writer.environment if writer else describe(command)
            if path != STDOUT:
                print(
                    f"{summary_line(environment)}; {sweep.ranks} ranks, {', '.join(sweep.dtypes)}, "
                    f"{sweep.device}"
                )
            _measure(sweep, rows, writer, options.quiet)
    except OSError as error:
        print(f"bench cannot write: {error}", file=sys.stderr)
        return 2
    except (RankError, StartError) as error:
        print(f"bench failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what was measured so far:", file=sys.stderr)
        if not options.quiet:
            print(_table(options, rows))
        return 130
    if not options.quiet:
        print(_table(options, rows))
    if options.out:
        assert path
        try:
            write_plot(Records(environment, rows), path.with_suffix(".png"))
        except ValueError as error:
            print(f"wrote {path}, and no picture: {error}", file=sys.stderr)
            return 1
        print(f"\nwrote {path} and {path.with_suffix('.png').name}")
    return 0


def _default_backends(device: str) -> tuple[str, ...]:
    return ("fastcomm", "gloo") if device == "cpu" else ("fastcomm", "symm_mem_two_shot", "nccl")


def _measure(
    sweep: object, rows: list[dict[str, object]], writer: RecordWriter | None, quiet: bool
) -> None:
    """Run the sweep under a progress bar; rows go to ``rows`` and to the file at once."""
    from fastcomm.bench.sweep import SweepOptions, run_sweep

    assert isinstance(sweep, SweepOptions)

    def keep(row: dict[str, object]) -> None:
        rows.append(row)
        if writer:
            writer.write(row)

    if quiet:
        return run_sweep(sweep, keep)
    from tqdm import tqdm

    total = len(list(sweep.points())) * len(sweep.backends) * len(sweep.dtypes)
    bar = tqdm(total=total, unit="row", ncols=90, disable=None)

    def on_row(row: dict[str, object]) -> None:
        keep(row)
        size = row["bytes"]
        bar.set_description(f"{row['op']} {format_size(size) if isinstance(size, int) else ''}")
        bar.update()

    with bar:
        run_sweep(sweep, on_row)


def _table(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> str:
    from fastcomm.bench.table import format_summary, format_table

    return (format_summary if options.summary else format_table)(rows, options.style)


def _show(options: argparse.Namespace) -> int:
    """Print or plot a file that exists."""
    from fastcomm.bench.plot import write_plot

    plot: Path | None = options.plot
    try:
        if options.table:
            rows = read_records(options.table).rows
            shown = [row for row in rows if not options.ops or row["op"] in options.ops]
            if options.sizes:
                shown = [row for row in shown if row["bytes"] in options.sizes]
            print(_table(options, shown))
        if plot:
            write_plot(read_records(plot), plot.with_suffix(".png"))
            print(f"wrote {plot.with_suffix('.png')}")
    except (OSError, ValueError) as error:
        print(f"cannot show it: {error}", file=sys.stderr)
        return 1
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _sizes(text: str) -> list[int]:
    try:
        return parse_sizes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None

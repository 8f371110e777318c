"""Command line of the benchmarks: ``fastcomm bench`` or ``python -m fastcomm.bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcomm._commands.common import run
from fastcomm._commands.words import name_of
from fastcomm._measure.units import format_size
from fastcomm.bench.options import build_parser, check, check_hosts, check_places
from fastcomm.bench.records import STDOUT, Records, RecordWriter, read_records, write_csv

if TYPE_CHECKING:
    from fastcomm.bench.sweep import SweepOptions

_NEEDED = ("tabulate", "tqdm", "matplotlib")


def main(
    argv: Sequence[str],
    prepare: Callable[[], None] | None = None,
    name: str = "fastcomm bench",
) -> int:
    """Run the command; return the exit status.

    Args:
        argv: the words after the command's name.
        prepare: called first, here and in each rank: it may register contenders
            (`fastcomm._measure.line_up.register`).
        name: the command's name, for messages.

    Returns:
        0 if all went well; 1 with the reason on standard error if not; 2 for wrong options,
        missing packages, and files that cannot be written; 130 for Ctrl-C.
    """
    if prepare is not None:
        prepare()
    parser = build_parser(name)
    parser.set_defaults(prepare=prepare)
    options = parser.parse_args(argv)
    options.quiet = options.quiet or STDOUT in (options.json, options.csv)
    shows = not options.quiet or options.out or options.table or options.plot
    return run(name, _NEEDED if shows else (), lambda: _bench(parser, options, argv))


def _bench(
    parser: argparse.ArgumentParser, options: argparse.Namespace, argv: Sequence[str]
) -> int:
    check_hosts(parser, options)
    from_file = options.table or options.plot
    if not from_file:
        check(parser, options)
    if from_file or not _is_other_rank():
        check_places(parser, options)  # which rank 0 makes
    if (from_file or not options.quiet) and options.style not in _styles():
        parser.error(f"--style {options.style}: known are {', '.join(_styles())}")
    if from_file:
        return _show(options)
    return _run(options, [parser.prog, *argv])


def _is_other_rank() -> bool:
    """Tell whether this process is a rank of a job, and not the first, which alone reports."""
    from fastcomm._measure.launch import running_job

    job = running_job()
    return job is not None and job[0] != 0


def _styles() -> list[str]:
    from tabulate import tabulate_formats

    return sorted(tabulate_formats)


def _run(options: argparse.Namespace, command: list[str]) -> int:
    from fastcomm._measure.environment import describe, summary_line
    from fastcomm._measure.launch import RankError, StartError
    from fastcomm.bench.hosts import OneHostError, run_hosts
    from fastcomm.bench.plot import write_plot
    from fastcomm.bench.sweep import SweepOptions, run_sweep

    sweep = SweepOptions(
        ops=options.ops,
        sizes=tuple(options.sizes),
        backends=options.backends,
        device=options.device,
        ranks=options.ranks,
        dtypes=options.dtype,
        budget_s=options.budget,
        iterations=options.iterations,
        warm_up=options.warm_up,
        reductions=options.reduction,
        check=options.check,
        prepare=options.prepare,
    )
    measure = run_hosts if options.hosts else run_sweep
    if _is_other_rank():
        try:
            measure(sweep, lambda row: None)
        except OneHostError:
            return 2
        return 0
    rows: list[dict[str, object]] = []
    stem = f"bench-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    path = options.out / f"{stem}.jsonl" if options.out else options.json
    try:
        if options.csv and options.csv != STDOUT:
            write_csv(options.csv, [])  # fails before anything is measured
        with RecordWriter(path, command) if path else nullcontext() as writer:
            environment = writer.environment if writer else describe(command)
            if STDOUT not in (path, options.csv):
                print(
                    f"{summary_line(environment)}; {sweep.ranks} ranks, {', '.join(sweep.dtypes)}, "
                    f"{sweep.device}"
                )
            try:
                _measure(measure, sweep, rows, writer, options.quiet)
            finally:  # also after an error, as with the records
                if options.csv:
                    write_csv(options.csv, rows)
    except OneHostError as error:
        if path and path != STDOUT:  # which has no rows
            path.unlink()
        print(f"fastcomm bench: {error}", file=sys.stderr)
        return 2
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


def _measure(
    measure: Callable[[Any, Callable[[dict[str, object]], None]], None],
    sweep: SweepOptions,
    rows: list[dict[str, object]],
    writer: RecordWriter | None,
    quiet: bool,
) -> None:
    """Run ``measure`` under a progress bar; append each row to ``rows`` and the file at once."""

    def keep(row: dict[str, object]) -> None:
        rows.append(row)
        if writer:
            writer.write(row)

    if quiet:
        return measure(sweep, keep)
    from tqdm import tqdm

    total = len(list(sweep.points())) * len(sweep.backends) * len(sweep.dtypes)
    bar = tqdm(total=total or None, unit="row", ncols=90, disable=None)

    def on_row(row: dict[str, object]) -> None:
        keep(row)
        size = row.get("bytes")
        shown = format_size(size) if isinstance(size, int) else ""
        bar.set_description(f"{row.get('op', 'links')} {shown}")
        bar.update()

    with bar:
        measure(sweep, on_row)


def _table(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> str:
    from fastcomm.bench.table import format_hosts, format_summary, format_table, is_of_hosts

    if is_of_hosts(rows):
        return format_hosts(rows, options.style)
    return (format_summary if options.summary else format_table)(rows, options.style)


def _show(options: argparse.Namespace) -> int:
    """Print or plot the rows of a file that was written earlier."""
    from fastcomm.bench.plot import write_plot

    plot: Path | None = options.plot
    try:
        if options.table:
            rows = read_records(options.table).rows
            named = [row["op"] for row in rows if "op" in row]
            known = dict.fromkeys(name for op in named for name in (op.partition("(")[0], op))
            options.ops = tuple(
                name_of(op, known, "operation in the file")
                for op in options.ops or ()
                if options.ops != ("all",)
            )
            shown = [row for row in rows if _is_wanted(row, options)]
            if options.csv:
                write_csv(options.csv, shown)
            else:
                print(_table(options, shown))
        if plot:
            picture = (options.out or plot.parent) / f"{plot.stem}.png"
            write_plot(read_records(plot), picture)
            print(f"wrote {picture}")
    except argparse.ArgumentTypeError as error:
        print(f"fastcomm bench: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"cannot show it: {error}", file=sys.stderr)
        return 1
    return 0


def _is_wanted(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Tell whether a row is of the operations and sizes that were asked for."""
    if "op" not in row:  # a link's, or a host's
        return True
    name = row["op"].partition("(")[0]  # without the reduction
    of_op = not options.ops or name in options.ops or row["op"] in options.ops
    return of_op and (not options.sizes or row["bytes"] in options.sizes)

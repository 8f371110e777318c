"""``fastcomm check``: test and time all paths between ranks on this machine.

Afterwards process groups avoid the paths that are wrong (``fastcomm/_machine/verdicts.py``).

Exit status: 0 if nothing is wrong (a missing path is not wrong), 1 if something is, 2 for
invalid arguments, missing packages or a file that cannot be written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastcomm._commands.common import TABLES, run, seconds, several_ranks
from fastcomm.check.paths import PATHS

_STARTS_S = 20  # seconds that a path's ranks may take to start and to end


def build_parser() -> argparse.ArgumentParser:
    """The command line of check."""
    parser = argparse.ArgumentParser(
        prog="fastcomm check",
        description="Try every way between ranks that this machine offers, compare each result "
        "with what it has to be, and time it beside a stock backend.",
    )
    parser.add_argument("--ranks", type=several_ranks, default=2, help="of paths on the host (2)")
    parser.add_argument(
        "--devices", type=several_ranks, help="ranks of paths on devices (one for each; more share)"
    )
    parser.add_argument("--no-devices", action="store_true", help="paths on the host alone")
    parser.add_argument(
        "--paths",
        type=_paths,
        metavar="PATH,...",
        help=f"these alone, of {', '.join(PATHS)} (all); groups then do not avoid what is found",
    )
    parser.add_argument("--budget", type=seconds, default=2.0, help="seconds of timing a path (2)")
    parser.add_argument("--timeout", type=seconds, default=120.0, help="seconds for a path (120)")
    parser.add_argument("--quiet", action="store_true", help="no tables, which need more packages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it (needs matplotlib)")
    return parser


def _paths(text: str) -> frozenset[str]:
    """Return full names of paths; ``handle`` stands for ``devices, handle``."""
    wanted = text.split(",")
    if unknown := [word for word in wanted if word not in PATHS]:
        raise argparse.ArgumentTypeError(f"no path {unknown[0]!r}; there are {', '.join(PATHS)}")
    return frozenset(PATHS[word] for word in wanted)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.timeout < _STARTS_S + 2 * options.budget:
        parser.error(f"--timeout: at least {_STARTS_S} and two budgets; or nothing can end in time")
    needed = [*(["matplotlib"] if options.plot else ()), *(() if options.quiet else TABLES)]
    words = sys.argv[1:] if argv is None else argv
    return run("fastcomm check", needed, lambda: _check(options, ["fastcomm check", *words]))


def _check(options: argparse.Namespace, command: list[str]) -> int:
    from fastcomm._machine import identity as _machine
    from fastcomm._measure.environment import describe, summary_line
    from fastcomm._measure.launch import RankError
    from fastcomm.check import machine, report
    from fastcomm.check.plot import write_plot
    from fastcomm.check.run import Options, ask_devices

    environment = describe(command)
    print(summary_line(environment))
    wanted = Options(
        ranks=options.ranks,
        devices=0 if options.no_devices else options.devices,
        budget_s=options.budget,
        timeout_s=options.timeout,
        paths=options.paths,
    )
    try:
        devices = ask_devices(wanted)
    except RankError as error:
        print(f"check: asking for devices fails: {str(error).splitlines()[-1]}", file=sys.stderr)
        return 1
    for line in machine.lines(devices["machine"]):
        print(f"  {line}")

    def save(rows: list[dict[str, object]]) -> None:
        if options.json:
            found = {"environment": environment, "devices": devices, "rows": rows}
            _machine.write_whole(options.json, json.dumps(found, indent=1, default=str) + "\n")

    save([])  # fails now, not at the end, if it cannot be written
    rows = _checked(wanted, devices["count"], options.quiet, save)
    if not options.quiet:
        print(report.format_text(rows))
    if way := report.way_of(rows):
        print(f"\nbetween these devices groups use the way: {way}")
    for line in [*machine.warnings(devices["machine"]), *report.warnings(rows)]:
        print(f"warning: {line}")
    all_devices = wanted.devices is None and devices["count"] >= len(_machine.gpus())
    if options.paths is None:  # else what was not tried may be the way around
        _record(report.settings(rows), report.decided(rows, all_devices))
    if options.plot:
        try:
            write_plot(rows, options.plot)
        except ValueError as error:
            print(f"no picture: {error}", file=sys.stderr)
    return 1 if report.is_bad(rows) else 0


def _record(settings: dict[str, str], decided: set[str]) -> None:
    """Record settings with which process groups on this machine avoid what is wrong."""
    from fastcomm._machine import verdicts as _verdicts

    words = " ".join(f"{name}={value}" for name, value in settings.items())
    try:
        _verdicts.write(settings, decided)
    except OSError as error:
        print(f"verdicts cannot be written: {error}", file=sys.stderr)
        if settings:
            print(f"Set {words} to go around what is wrong here.", file=sys.stderr)
        return
    if settings:
        print(f"\n{words}: so process groups go around what is wrong here ({_verdicts.file()})")


def _checked(
    options: object,
    devices: int,
    quiet: bool,
    save: Callable[[list[dict[str, object]]], None],
) -> list[dict[str, object]]:
    """Run all paths under a progress bar, which shows on a terminal only.

    ``save`` gets the rows so far when a path reports its first one, and at the end.
    """
    from fastcomm.check.run import Options, planned
    from fastcomm.check.run import run as run_all

    assert isinstance(options, Options)
    plan = planned(options, devices)
    so_far: list[dict[str, object]] = []
    bar: Any = None
    if not quiet:
        from tqdm import tqdm

        bar = tqdm(total=len(plan), unit="path", ncols=90, disable=None)

    def on_row(row: dict[str, object]) -> None:
        begins = not so_far or so_far[-1]["path"] != row["path"]
        so_far.append(row)
        if begins:
            save(so_far)
        if bar is not None:
            bar.update(begins and len(so_far) > 1)
            bar.set_description(f"{row['path']}: {row['check']} {row['operation']}")

    with bar or contextlib.nullcontext():
        rows = run_all(options, plan, on_row)
        if bar is not None:
            bar.update()
    save(rows)
    return rows

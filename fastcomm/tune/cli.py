"""``fastcomm tune``: measure which values suit this machine, and keep them for process groups.

Without it the defaults hold. Exit status: 0, 1 if a rank fails, 2 for invalid arguments,
missing packages or a file that cannot be written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastcomm._commands.common import TABLES, run, seconds, several_ranks


def build_parser() -> argparse.ArgumentParser:
    """The command line of tune."""
    parser = argparse.ArgumentParser(
        prog="fastcomm tune",
        description="Measure up to which size one step is best, in what blocks more is moved, and "
        "on devices how much of one a kernel should take, for groups of that many ranks. Process "
        "groups go by it from then on, unless settings or FASTCOMM_TUNING=off say otherwise.",
    )
    parser.add_argument(
        "--ranks",
        type=several_ranks,
        nargs="*",
        help="numbers of ranks on the host (2, and as many as there are cores; none: no number)",
    )
    parser.add_argument(
        "--devices",
        type=several_ranks,
        nargs="*",
        help="numbers of ranks on devices (as many as there are; more share them)",
    )
    parser.add_argument(
        "--budget", type=seconds, default=8.0, help="seconds for each number of ranks (8)"
    )
    parser.add_argument("--quiet", action="store_true", help="no tables, which need more packages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--dry-run", action="store_true", help="measure, and keep nothing")
    parser.add_argument("--forget", action="store_true", help="go by the defaults again; no more")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = build_parser()
    options = parser.parse_args(argv)
    from fastcomm._machine import tuning

    def forget() -> int:
        tuning.write({})
        return 0

    words = sys.argv[1:] if argv is None else argv
    if options.forget:
        return run("fastcomm tune", (), forget)
    needed = () if options.quiet else TABLES
    return run("fastcomm tune", needed, lambda: _tune(options, ["fastcomm tune", *words]))


def _tune(options: argparse.Namespace, command: list[str]) -> int:
    from fastcomm import _native
    from fastcomm._machine import identity, tuning
    from fastcomm._measure.environment import describe, summary_line
    from fastcomm._measure.launch import RankError
    from fastcomm.check.run import Options as Asked
    from fastcomm.check.run import ask_devices
    from fastcomm.tune.run import Options

    environment = describe(command)
    print(summary_line(environment))
    native = _native.load()
    cores = native.usable_cores()
    ranks = options.ranks
    if ranks is None:
        ranks = [2, *([cores] if 2 < cores <= native.MAX_RANKS else [])]
    try:
        devices = options.devices
        count = ask_devices(Asked())["count"] if devices != [] else 0
        if devices is None:
            devices = [min(count, native.MAX_DEVICES)] if count >= 2 else []
        if devices and count == 0:
            print("tune: --devices: torch finds none here", file=sys.stderr)
            return 2
        wanted = Options(tuple(ranks), tuple(devices), options.budget)
        found, rows = _measured(wanted, options.quiet)
    except RankError as error:
        lines = str(error).splitlines()
        print("tune:", *dict.fromkeys([lines[0], lines[-1]]), file=sys.stderr)
        return 1
    if not options.quiet:
        print(format_text(rows))
    if options.json:
        report = {"environment": environment, "values": found, "rows": rows}
        identity.write_whole(options.json, json.dumps(report, indent=1, default=str) + "\n")
    if options.dry_run:
        print("nothing is kept (--dry-run)")
        return 0
    # Values for other numbers of ranks stay.
    tuning.write({**tuning.read(), **found})
    differing = sum(bool(values) for values in found.values())
    print(
        f"{tuning.file()}: {differing} of {len(found)} numbers of ranks do better than by default"
    )
    return 0


def _measured(options: Any, quiet: bool) -> tuple[dict[int, dict[str, int]], list[dict[str, Any]]]:
    """Measure under a progress bar, which shows on a terminal only; return values and rows."""
    from fastcomm.tune.run import messages
    from fastcomm.tune.run import run as run_all

    rows: list[dict[str, Any]] = []
    bar: Any = None
    if not quiet:
        from tqdm import tqdm

        bar = tqdm(total=messages(options), unit="message", ncols=100, disable=None)

    def on_begin(text: str) -> None:
        if bar is not None:
            bar.update()
            bar.set_description(text)

    with bar or contextlib.nullcontext():
        found = run_all(options, rows.append, on_begin)
    return found, rows


def format_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of candidates with their times, as multiples of the best one's."""
    from tabulate import tabulate

    lines = []
    for row in rows:
        named = ", ".join(f"{name} {value}" for name, value in row["candidate"].items())
        mark = "chosen" if row["chosen"] else ""
        lines.append([row["ranks"], row["on"], row["step"], named or "default", row["ratio"], mark])
    header = ["ranks", "on", "choice", "candidate", "times the best", ""]
    return str(tabulate(lines, header, floatfmt=".3f"))

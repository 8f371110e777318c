"""``python -m fastcomm check``: whether fastcomm works on this machine, and how fast.

What is wrong, process groups go around from then on (``fastcomm/_verdicts.py``).

Exit status: 0 if nothing is wrong (a path that is not there is not wrong), 1 if something is, 2 for
arguments that cannot be meant.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

_NEEDED = ("tabulate", "tqdm")


def build_parser() -> argparse.ArgumentParser:
    """The command line of check."""
    parser = argparse.ArgumentParser(
        prog="python -m fastcomm check",
        description="Try every way between ranks that this machine offers, compare each result "
        "with what it has to be, and time it beside a stock backend.",
    )
    parser.add_argument("--ranks", type=_at_least_two, default=2, help="of paths on the host (2)")
    parser.add_argument(
        "--devices", type=_at_least_two, help="ranks of paths on devices (one for each; more share)"
    )
    parser.add_argument("--no-devices", action="store_true", help="paths on the host alone")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of timing a path (2)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a path (120)")
    parser.add_argument("--quiet", action="store_true", help="no tables, which need more packages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it (needs matplotlib)")
    return parser


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError("at least 2 ranks have something to say to each other")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = build_parser().parse_args(argv)
    needed = ["matplotlib"] if options.plot else []
    needed += () if options.quiet else _NEEDED
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"this needs more packages: pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    from fastcomm.bench.environment import describe, summary_line
    from fastcomm.bench.launch import RankError
    from fastcomm.check import report
    from fastcomm.check.run import Options, ask_devices

    command = ["python -m fastcomm check", *(sys.argv[1:] if argv is None else argv)]
    environment = describe(command)
    print(summary_line(environment))
    wanted = Options(
        ranks=options.ranks,
        devices=0 if options.no_devices else options.devices,
        budget_s=options.budget,
        timeout_s=options.timeout,
    )
    try:
        devices = ask_devices(wanted)
    except RankError as error:
        print(f"asking for devices fails: {error}", file=sys.stderr)
        return 1
    seen = devices["seen"]
    for line in seen.items() if isinstance(seen, dict) else [("devices", seen)]:
        print(f"  {line[0]}: {line[1]}")
    try:
        rows = _checked(wanted, devices["count"], options.quiet)
    except KeyboardInterrupt:
        return 130
    if not options.quiet:
        print(report.format_text(rows))
    _put_down(report.settings(rows))
    found = {"environment": environment, "devices": devices, "rows": rows}
    try:
        if options.json:
            options.json.write_text(json.dumps(found, indent=1, default=str) + "\n")
        if options.plot:
            from fastcomm.check.plot import write_plot

            write_plot(rows, options.plot)
    except (OSError, ValueError) as error:
        print(f"cannot write it: {error}", file=sys.stderr)
        return 2
    return 1 if report.is_bad(rows) else 0


def _put_down(settings: dict[str, str]) -> None:
    """Leave what leads around what is wrong, for process groups on this machine."""
    from fastcomm import _verdicts

    try:
        _verdicts.write(settings)
    except OSError as error:
        print(f"verdicts cannot be written: {error}", file=sys.stderr)
    if settings:
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        print(f"\n{words}: so process groups go around what is wrong here ({_verdicts.file()})")


def _checked(options: object, devices: int, quiet: bool) -> list[dict[str, object]]:
    """Run all paths under a progress bar, which is there on a terminal only."""
    from fastcomm.check.run import Options, planned, run

    assert isinstance(options, Options)
    plan = planned(options, devices)
    if quiet:
        return run(options, plan, lambda row: None)
    from tqdm import tqdm

    with tqdm(total=len(plan), unit="path", ncols=90, disable=None) as bar:
        last = ""

        def on_row(row: dict[str, object]) -> None:
            nonlocal last
            if row["path"] != last and last:
                bar.update()
            last = str(row["path"])
            bar.set_description(f"{last}: {row['check']} {row['operation']}")

        rows = run(options, plan, on_row)
        bar.update()
    return rows

"""``fastcomm tune``: measure which values suit this machine, and keep them for process groups.

Without it the defaults hold. Exit status: 0, 1 if a rank fails, 2 for invalid arguments,
missing packages, a file that cannot be written, or hosts of which nothing is composed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcomm._commands.common import TABLES, run, seconds, several_ranks
from fastcomm.tune.tables import format_hosts, format_text

if TYPE_CHECKING:
    from fastcomm._machine.tuning import Key

_BUDGET_S, _HOSTS_BUDGET_S = 8.0, 60.0
_HOSTS_START = (
    "on each host: torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d "
    "--rdzv-endpoint HOST0:29500 -m fastcomm tune --hosts"
)


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
        "--hosts",
        action="store_true",
        help="measure between the hosts that the job runs on, what goes by their first ranks and "
        "in what chunks more is moved; under torchrun, on several hosts",
    )
    parser.add_argument(
        "--budget",
        type=seconds,
        help=f"seconds for each number of ranks ({_BUDGET_S:g}), or for all hosts "
        f"({_HOSTS_BUDGET_S:g})",
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
    if options.hosts:
        return _tune_hosts(parser, options, ["fastcomm tune", *words])
    needed = () if options.quiet else TABLES
    options.budget = options.budget or _BUDGET_S
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


def _measured(options: Any, quiet: bool) -> tuple[dict[Key, dict[str, int]], list[dict[str, Any]]]:
    """Measure under a progress bar, which shows on a terminal only; return values and rows."""
    from fastcomm.tune.run import messages
    from fastcomm.tune.run import run as run_all

    rows: list[dict[str, Any]] = []
    with _bar(messages(options), quiet) as on_begin:
        found = run_all(options, rows.append, on_begin)
    return found, rows


@contextlib.contextmanager
def _bar(messages: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield what is told that a message begins; a bar shows it, on a terminal only."""
    if quiet:
        yield lambda text: None
        return
    from tqdm import tqdm

    with tqdm(total=messages, unit="message", ncols=100, disable=None) as bar:

        def on_begin(text: str) -> None:
            bar.update()
            bar.set_description(text)

        yield on_begin


def _tune_hosts(
    parser: argparse.ArgumentParser, options: argparse.Namespace, command: list[str]
) -> int:
    """Run as a rank of a job over several hosts; the first one reports."""
    from fastcomm._machine.tuning import HOSTS_SETTINGS
    from fastcomm._measure.launch import RankError, running_job

    for name in ("ranks", "devices"):
        if getattr(options, name) is not None:
            parser.error(f"--hosts has no --{name}")
    if (job := running_job()) is None:
        parser.error(f"--hosts needs a job that runs on several hosts: start it {_HOSTS_START}")
    for name in HOSTS_SETTINGS.values():  # they are what is measured
        os.environ.pop(name, None)
    first = job[0] == 0
    options.budget = options.budget or _HOSTS_BUDGET_S

    def body() -> int:
        try:
            return _report_hosts(options, command) if first else _help_with_hosts(options)
        except RankError as error:
            lines = str(error).splitlines()
            print("tune:", *dict.fromkeys([lines[0], lines[-1]]), file=sys.stderr)
            return 1

    return run("fastcomm tune", TABLES if first and not options.quiet else (), body)


def _help_with_hosts(options: argparse.Namespace) -> int:
    """Be another rank than the first, which says what goes wrong."""
    from fastcomm.tune import hosts

    wanted = hosts.Options(options.budget, keep=not options.dry_run)
    try:
        found = hosts.run(wanted, lambda row: None, lambda text: None)
    except hosts.NotComposedError:
        return 2
    return 2 if any(why for _, why in found.kept) else 0


def _report_hosts(options: argparse.Namespace, command: list[str]) -> int:
    from fastcomm._machine import identity
    from fastcomm._measure.environment import describe, summary_line
    from fastcomm.tune import hosts

    environment = describe(command)
    print(summary_line(environment))
    wanted = hosts.Options(options.budget, keep=not options.dry_run)
    rows: list[dict[str, Any]] = []
    try:
        with _bar(hosts.messages(wanted), options.quiet) as on_begin:
            found = hosts.run(wanted, rows.append, on_begin)
    except hosts.NotComposedError as error:
        print(f"fastcomm tune: {error}", file=sys.stderr)
        return 2
    if not options.quiet:
        print(format_hosts(rows))
    if options.json:
        report = {"environment": environment, "hosts": found.hosts, "values": found.values}
        text = json.dumps({**report, "rows": rows}, indent=1, default=str)
        identity.write_whole(options.json, text + "\n")
    if options.dry_run:
        print("nothing is kept (--dry-run)")
        return 0
    of = f"{len(found.hosts)} hosts of {len(found.hosts[0])} ranks"
    values = ", ".join(f"{name} {value}" for name, value in found.values.items())
    print(f"{of}: {values or 'nothing does better than the defaults'}")
    for number, (file, why) in enumerate(found.kept):
        if why:
            print(
                f"fastcomm tune: host {number} keeps nothing: {why}. A group with rank 0 there "
                "goes by the defaults, or by what was measured before",
                file=sys.stderr,
            )
        else:
            print(f"host {number}: {file}")
    return 2 if any(why for _, why in found.kept) else 0

"""``fastcomm top``: what the ranks on this host do, and which rank holds up the others."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from fastcomm._commands.common import guarded, positive, seconds
from fastcomm._commands.exporter import address, server, write
from fastcomm._commands.screen import Screen
from fastcomm._records.as_json import as_json
from fastcomm._records.exposition import Exposition
from fastcomm._records.look import Looks
from fastcomm._records.report import Report, text

_NAME = "fastcomm top"
_DESCRIPTION = """\
Show what each rank on this host does: the call it is in and for how long, or that it is outside
any call, stopped or gone; whom it waits for; which rank holds up the others. Ranks need not help:
their records are read through /proc. The view ends with q or Ctrl-C."""
_EPILOG = """\
for: how long the rank has been in its state; if it is stopped or gone, since its last record.
waits for: ranks of the group.
calls/s, bytes/s: of the last 5 s, or of the last 512 calls if they took less.
pid: in parentheses as the process sees itself, if it differs, or if no process is here.

exit status:
    0  no job is held up, or q has ended the view
    1  no job was found
    2  an error, which standard error tells
    3  a job is held up: a rank is stopped or gone, or ranks have waited for more than 10 s
  130  Ctrl-C"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of top."""
    parser = argparse.ArgumentParser(
        prog=_NAME,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "pid", nargs="?", type=positive, metavar="PID", help="the job of this process only"
    )
    parser.add_argument(
        "--all", action="store_true", help="ranks of all users, which needs root, not of this user"
    )
    parser.add_argument("--once", action="store_true", help="print what there is now, and end")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON, times in seconds: a line each time, or with --once indented",
    )
    parser.add_argument(
        "--interval", type=seconds, default=1.0, metavar="S", help="seconds between looks (1)"
    )
    parser.add_argument(
        "--prometheus",
        metavar="PORT|FILE",
        help="give numbers to Prometheus: by HTTP on 127.0.0.1, or HOST:PORT, at /metrics; or in a "
        "file, which is replaced each time",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.pid is not None and options.all:
        parser.error("PID and --all exclude each other")
    if options.prometheus is not None:
        if options.json:
            parser.error("--prometheus and --json exclude each other")
        if options.once and address(options.prometheus) is not None:
            parser.error("--once writes a file; a server goes on")
        return guarded(_NAME, lambda: _export(options))
    return guarded(_NAME, lambda: _top(options))


def _top(options: argparse.Namespace) -> int:
    looks = Looks(options.pid, options.all)
    if options.once:
        return _once(options, looks.look())
    if options.json or not sys.stdout.isatty():
        while True:
            seen = looks.look()
            print(json.dumps(as_json(seen)) if options.json else f"{_text(options, seen)}\n")
            sys.stdout.flush()
            time.sleep(options.interval)
    with Screen() as screen:
        while True:
            screen.show(_text(options, looks.look()))
            if screen.wait(options.interval):
                return 0


def _once(options: argparse.Namespace, seen: Report) -> int:
    if options.json:
        print(json.dumps(as_json(seen), indent=2))
    else:
        print(_jobs_text(options, seen))
        for line in seen.found.warnings:
            print(f"{_NAME}: {line}", file=sys.stderr)
    return seen.status


def _text(options: argparse.Namespace, seen: Report) -> str:
    return "\n\n".join([_jobs_text(options, seen), *seen.found.warnings])


def _jobs_text(options: argparse.Namespace, seen: Report) -> str:
    if seen.jobs:
        return text(seen)
    if options.pid is not None:
        return (
            f"no job found: process {options.pid} has no records of fastcomm, and has started none "
            "that has, or is not here"
        )
    return "no job found" + ("" if options.all else " of this user; --all looks at all users")


def _export(options: argparse.Namespace) -> int:
    exposition = Exposition(options.pid, options.all)
    where = address(options.prometheus)
    if where is not None:
        with server(where, exposition.text) as serving:
            host, port = serving.server_address[:2]
            print(f"{_NAME}: http://{host!s}:{port}/metrics", file=sys.stderr, flush=True)
            serving.serve_forever()
    write(options.prometheus, exposition.text())
    while not options.once:
        time.sleep(options.interval)
        write(options.prometheus, exposition.text())
    return 0

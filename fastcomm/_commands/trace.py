"""``fastcomm trace``: the calls of a job's ranks, from their records, and what they tell."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from fastcomm._commands.common import guarded
from fastcomm._records import flight, picture, saved, timeline
from fastcomm._records.layout import RecordsError
from fastcomm._records.ranks import Rank, ranks_of_job
from fastcomm._records.summary import summarize
from fastcomm._records.summary_text import findings, format_tables

NAME = "fastcomm trace"
_PICTURES = (".png", ".svg", ".pdf")


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Read the records of a job's ranks, which need not answer, and print what "
        "their collectives cost and which rank the others wait for; or write the calls to files "
        "that other tools read.",
    )
    parser.add_argument(
        "job", metavar="PID|FILE", help="a process of the job, or a file that --save has written"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write a timeline for ui.perfetto.dev: a .json, or a .json.gz; or a picture of the "
        "latest collectives: a .png, .svg or .pdf",
    )
    parser.add_argument(
        "--flight-recorder",
        metavar="PREFIX",
        help="write a file for each rank, named PREFIX and the rank, for torchfrtrace",
    )
    parser.add_argument("--save", metavar="FILE", help="write the records themselves, for later")
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON, times in microseconds"
    )
    options = parser.parse_args(argv)
    writes = any((options.output, options.flight_recorder, options.save))
    draws = (options.output or "").endswith(_PICTURES)
    needed = "matplotlib" if draws else "" if options.json or writes else "tabulate"
    if needed and importlib.util.find_spec(needed) is None:
        print(f"this needs more packages: pip install {needed}", file=sys.stderr)
        return 2
    return guarded(NAME, lambda: _trace(options, writes))


def _trace(options: argparse.Namespace, writes: bool) -> int:
    try:
        ranks, source = _read(options.job)
    except RecordsError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    if not ranks:
        print(f"{NAME}: {options.job} has no records of a group", file=sys.stderr)
        return 2
    if writes:
        try:
            _write(options, ranks)
        except ValueError as error:
            print(f"{NAME}: {options.job}: {error}", file=sys.stderr)
            return 2
    if options.json:
        summary = summarize(ranks)
        print(json.dumps(asdict(summary) | {"findings": findings(summary)}, indent=2))
    elif not writes:
        summary = summarize(ranks)
        print(f"{source}\n\n{format_tables(summary)}\n")
        print("\n".join(findings(summary)))
    return 0


def _read(job: str) -> tuple[list[Rank], str]:
    """Return the ranks of a process's job or of a file, and a line that says where from."""
    if job.isdecimal():
        ranks = ranks_of_job(int(job))
        return ranks, f"the job of process {job}: {_count(ranks)}"
    found = saved.load(job)
    why = f": {found.why}" if found.why else ""
    return list(found.ranks), f"{_count(found.ranks)} of {found.host}, {found.date}{why}"


def _count(ranks: Sequence[Rank]) -> str:
    return f"{len(ranks)} rank" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _write(options: argparse.Namespace, ranks: Sequence[Rank]) -> None:
    """Write the files that are asked for. What is written is said on standard error."""
    if options.output:
        if options.output.endswith(_PICTURES):
            picture.write_picture(options.output, ranks)
            _say(options.output)
        else:
            timeline.write(options.output, ranks)
            _say(f"{options.output}: open it in ui.perfetto.dev")
    if options.flight_recorder:
        files = flight.write(options.flight_recorder, ranks)
        _say(f"{', '.join(map(str, files))}: read them with torchfrtrace")
    if options.save:
        saved.save(
            options.save,
            [
                (rank.data, saved.Facts(rank.number, rank.pid, rank.state, rank.read_at))
                for rank in ranks
            ],
            why=f"{NAME} {options.job}",
        )
        _say(f"{options.save}: read it with {NAME}")


def _say(text: str) -> None:
    print(f"{NAME}: {text}", file=sys.stderr)

"""``fastcomm profile``: what collectives cost, from traces of torch's profiler."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastcomm._commands.common import run
from fastcomm._measure.traces import (
    WAITING,
    Comms,
    bytes_of,
    computation,
    interval,
    is_collective_kernel,
    merged,
    operations,
    overlap,
)


@dataclass
class Calls:
    """The calls of one operation in one group, by one rank. Times are in microseconds."""

    rank: int
    group: str
    operation: str
    calls: int = 0
    bytes: int = 0  # that this rank gives; of a receive, that it gets
    time: float = 0.0  # of operations, from when their turn comes to their end
    waiting: float = 0.0  # of that, for a peer that has not come
    hidden: float = 0.0  # of that, while this rank computed
    waited_for: dict[str, float] = field(default_factory=dict)  # by peer


Rows = dict[tuple[int, str, str], Calls]


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="fastcomm profile",
        description="Read traces that torch.profiler has exported (export_chrome_trace, or "
        "tensorboard_trace_handler), and print each rank's collectives: calls, bytes, time, how "
        "much of it was spent waiting for a peer and for which, and how much was hidden behind "
        "computation.",
    )
    parser.add_argument(
        "traces", nargs="+", metavar="TRACE", help="a .json or .json.gz, or a folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, times in microseconds")
    options = parser.parse_args(argv)
    needed = () if options.json else ("tabulate",)
    return run("fastcomm profile", needed, lambda: _profile(options))


def _profile(options: argparse.Namespace) -> int:
    rows: Rows = {}
    for number, path in enumerate(_files(options.traces)):
        try:
            add_trace(rows, _loaded(path), number)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            print(
                f"fastcomm profile: {path} is no trace of torch.profiler: {error!r}",
                file=sys.stderr,
            )
            return 2
    found = list(rows.values())
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
    else:
        print(format_table(found) if found else "no collectives in these traces")
    return 0


def _files(names: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")))
        else:
            found.append(path)
    return found


def _loaded(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return trace


def add_trace(rows: Rows, trace: dict[str, Any], number: int) -> None:
    """Add the calls of a trace, whose rank is ``number`` unless it names one."""
    rank = int(trace.get("distributedInfo", {}).get("rank", number))
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    comms = Comms(events)
    for call in comms.events:
        row = _row(rows, rank, call["args"])
        row.calls += 1
        row.bytes += bytes_of(call["args"])
    on_host, on_devices = computation(events)
    anywhere = merged([*on_host, *on_devices])
    for each in operations(trace["traceEvents"]):
        issued = comms.of(each.slice, each.group)
        if issued is None:  # by a thread that the profiler did not watch, or before it began
            row = _row(rows, rank, {"Collective name": each.slice["name"]})
            row.calls += 1
            row.bytes += each.slice["args"]["bytes"]
        else:
            row = _row(rows, rank, issued["args"])
        row.time += each.slice["dur"]
        # Begins and ends are rounded: their difference may be a little more than the duration.
        row.hidden += min(overlap(interval(each.slice), anywhere), each.slice["dur"])
        for part in each.parts:
            if part["name"].startswith(WAITING):
                peer = part["name"].removeprefix(WAITING).removeprefix(" for ") or "unknown"
                row.waiting += part["dur"]
                row.waited_for[peer] = row.waited_for.get(peer, 0.0) + part["dur"]
    for kernel in filter(is_collective_kernel, events):
        row = _row(rows, rank, kernel["args"])
        row.time += kernel["dur"]
        row.hidden += min(overlap(interval(kernel), on_devices), kernel["dur"])


def _row(rows: Rows, rank: int, args: dict[str, Any]) -> Calls:
    group = args.get("Process Group Description") or args.get("Process Group Name") or "?"
    key = (rank, str(group), str(args["Collective name"]))
    return rows.setdefault(key, Calls(*key))


def format_table(rows: Sequence[Calls]) -> str:
    """Return a table of text, the calls that took longest first, and what the columns mean."""
    from tabulate import tabulate

    body = []
    for row in sorted(rows, key=lambda row: (row.rank, -row.time)):
        worst = max(row.waited_for, key=lambda peer: row.waited_for[peer], default="")
        body.append(
            [
                *(row.rank, row.group, row.operation, row.calls, f"{row.bytes:,}"),
                f"{row.time / 1000:,.3f}" if row.time else "",
                f"{row.waiting / row.time:.0%}" if row.time else "",
                worst,
                f"{row.hidden / row.time:.0%}" if row.time else "",
            ]
        )
    heads = ["rank", "group", "operation", "calls", "bytes", "ms", "waiting", "for", "hidden"]
    sides = ["right", "left", "left", *["right"] * 4, "left", "right"]
    table = tabulate(body, heads, colalign=sides, disable_numparse=True)
    return (
        f"{table}\n\nbytes: given by the rank, or received. ms: from an operation's turn on."
        "\nwaiting: the part of that in which a peer had not come; for: the one waited for longest."
        "\nhidden: the part of that in which the rank computed. No times: the trace has none."
    )

"""Calls of ranks on a time axis, as the JSON that Perfetto (ui.perfetto.dev) and Chrome show.

A rank is a process there; each group and lane of it has a track, and its messages have one. A call
is a slice from issue to end, with the parts "waiting" and "moving data" in it. Slices of a track
nest: calls that overlap go to further rows of the same name. Where a rank was waited for, an arrow
leads from its call to the data of each rank that waited. Times are in microseconds since the first
call.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastcomm._records.collectives import Collective, matched
from fastcomm._records.ranks import Rank, latest, member
from fastcomm._records.snapshot import Call

Event = dict[str, Any]

_FIRST_TRACK = 1 << 24  # above numbers of processes and threads: no track is taken for one of them


@dataclass
class _Row:
    """A row of slices that do not overlap."""

    pid: int
    tid: int
    end: int = 0  # of the last slice, in ns


@dataclass
class _Tracks:
    """The rows of all ranks, by rank and name; a row is added where all are taken."""

    rows: dict[tuple[int, str], list[_Row]] = field(default_factory=dict)
    count: int = 0

    def place(self, rank: int, pid: int, name: str, begin: int, end: int) -> _Row:
        """Return a row that is free from ``begin`` on, and take it until ``end``."""
        rows = self.rows.setdefault((rank, name), [])
        row = next((row for row in rows if row.end <= begin), None)
        if row is None:
            row = _Row(pid, _FIRST_TRACK + self.count)
            self.count += 1
            rows.append(row)
        row.end = end
        return row


@dataclass(frozen=True)
class _Placed:
    """A call where it is shown. ``met`` is None where it is not known when data began to move."""

    call: Call
    row: _Row
    end: int
    met: int | None


def timeline(ranks: Sequence[Rank]) -> dict[str, Any]:
    """Return the trace of ranks, for ``json.dump``."""
    collectives = matched(ranks)
    found = {(rank, id(call)): each for each in collectives for rank, call in each.calls.items()}
    zero = min((call.issued for rank in ranks for call in rank.snapshot.calls), default=0)
    pids = _pids(ranks)
    tracks = _Tracks()
    placed: dict[tuple[int, int], _Placed] = {}
    events: list[Event] = []
    for rank in ranks:
        now = rank.now
        for call in sorted(rank.snapshot.calls, key=lambda call: (call.issued, call.number)):
            shown = _place(tracks, rank.number, pids[rank.number], call, now)
            key = rank.number, id(call)
            placed[key] = shown
            events += _slices(shown, rank.number, found.get(key), zero)
    numbers = iter(range(1, 2**31))
    for each in collectives:
        events += _arrows(each, placed, numbers, zero)
    return {
        "traceEvents": [*_names(ranks, pids, tracks), *events],
        "displayTimeUnit": "ns",
    }


def _pids(ranks: Sequence[Rank]) -> dict[int, int]:
    """Return a number for each rank's process: its own where these differ, as on one host."""
    own = {rank.number: rank.pid for rank in ranks}
    if len(set(own.values())) == len(own) and all(0 < pid < _FIRST_TRACK for pid in own.values()):
        return own
    return {number: index for index, number in enumerate(own, 1)}


def _place(tracks: _Tracks, rank: int, pid: int, call: Call, now: int) -> _Placed:
    end = max(latest(call), now if call.ended is None else 0)
    met = None if call.started is None else min(max(call.started, call.issued), end)
    return _Placed(call, tracks.place(rank, pid, _track(call), call.issued, end), end, met)


def _track(call: Call) -> str:
    if call.is_message:
        return "messages"
    if call.group is None:
        return "a group that is gone"
    name = call.group.description or f"group '{call.group.name}'"
    return f"{name}, lane {call.lane}" if call.lane else name


def _slices(shown: _Placed, rank: int, collective: Collective | None, zero: int) -> Iterator[Event]:
    call = shown.call
    yield _slice(_name(call), shown.row, call.issued, shown.end, zero, _args(call))
    if call.started is None and call.outcome == "ok":
        return  # nothing was exchanged, or it is not told
    met = shown.end if shown.met is None else shown.met
    if met > call.issued:
        yield _slice(_waiting(rank, collective), shown.row, call.issued, met, zero)
    if shown.end > met:
        yield _slice("moving data", shown.row, met, shown.end, zero)


def _name(call: Call) -> str:
    if not call.is_message:
        return call.operation
    way = "to" if call.operation == "send" else "from"
    peer = _peer(call)
    return f"{call.operation} {way} {'any rank' if peer is None else f'rank {peer}'}"


def _peer(call: Call) -> int | None:
    """Return the number in the job of a message's peer, as far as it is known."""
    listed = None if call.group is None else member(call.group, call.peer)
    return call.peer if listed is None else listed


def _waiting(rank: int, collective: Collective | None) -> str:
    if collective is None:
        return "waiting"
    if len(collective.absent) > 1:
        return f"waiting for ranks {', '.join(map(str, collective.absent))}"
    awaited = collective.absent[0] if collective.absent else collective.straggler
    return "waiting" if awaited in (None, rank) else f"waiting for rank {awaited}"


def _args(call: Call) -> dict[str, Any]:
    known = {
        "sequence": call.sequence,
        "bytes": call.bytes,
        "dtype": call.dtype,
        "reduction": call.reduction if call.reduction != "none" else None,
        "root": call.root,
        "tag": call.tag if call.is_message else None,
        "path": call.path or None,
        "engine": call.engine or None,
        "outcome": call.outcome,
        "async": call.is_async or None,
        "open": True if call.ended is None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _slice(
    name: str, row: _Row, begin: int, end: int, zero: int, args: Mapping[str, Any] | None = None
) -> Event:
    event = _event("X", name, row, begin, zero) | {"dur": (end - begin) / 1000}
    return event | {"args": args} if args else event


def _event(kind: str, name: str, row: _Row, time: int, zero: int) -> Event:
    ts = (time - zero) / 1000
    return {"ph": kind, "cat": "fastcomm", "name": name, "pid": row.pid, "tid": row.tid, "ts": ts}


def _arrows(
    collective: Collective,
    placed: Mapping[tuple[int, int], _Placed],
    numbers: Iterator[int],
    zero: int,
) -> Iterator[Event]:
    """Yield a mark where the straggler came, and an arrow to each rank that it kept waiting."""
    straggler = collective.straggler
    if straggler is None or collective.lateness == 0:
        return
    late = collective.calls[straggler]
    row = placed[straggler, id(late)].row
    ms = collective.lateness / 1e6
    mark = _event("i", f"rank {straggler} is last, by {ms:.3f} ms", row, late.issued, zero)
    yield mark | {"s": "t"}
    for rank, call in collective.calls.items():
        shown = placed[rank, id(call)]
        if rank == straggler or shown.met is None or not late.issued <= shown.met < shown.end:
            continue
        number = {"id": next(numbers)}
        yield _event("s", "waited for", row, late.issued, zero) | number
        yield _event("f", "waited for", shown.row, shown.met, zero) | number | {"bp": "e"}


def _names(ranks: Sequence[Rank], pids: Mapping[int, int], tracks: _Tracks) -> Iterator[Event]:
    for rank in ranks:
        state = f", {rank.state}" if rank.state else ""
        about = {"ph": "M", "pid": pids[rank.number]}
        name = f"rank {rank.number} (pid {rank.pid}{state})"
        yield about | {"name": "process_name", "args": {"name": name}}
        yield about | {"name": "process_sort_index", "args": {"sort_index": rank.number}}
    for (_, name), rows in tracks.rows.items():
        for row in rows:
            about = {"ph": "M", "pid": row.pid, "tid": row.tid}
            yield about | {"name": "thread_name", "args": {"name": name}}
            yield about | {"name": "thread_sort_index", "args": {"sort_index": row.tid}}


def write(path: str | os.PathLike[str], ranks: Sequence[Rank]) -> None:
    """Write the timeline of ranks to a file, packed if its name ends in ``.gz``.

    Raises:
        OSError: it cannot be written.
    """
    data = json.dumps(timeline(ranks)).encode()
    is_packed = os.fspath(path).endswith(".gz")
    Path(path).write_bytes(gzip.compress(data) if is_packed else data)

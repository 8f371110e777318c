"""Collectives in traces of torch's profiler: which there are, and when a rank computed beside them.

Times of a trace are in microseconds. Three kinds of events matter:

- ``record_param_comms``: a call, with its sizes, on the thread that issues it, of any backend;
- slices on the tracks of fastcomm (``csrc/c10d/edge/span_tracks.cpp``): what became of it;
- kernels of NCCL, which carry the data of the call.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Interval = tuple[float, float]

COMMS = "record_param_comms"
WAITING = "waiting"
_NEAR = 1000.0  # microseconds

# Bytes of an element of a type, as record_param_comms names it.
_WIDTHS = {
    "ComplexDouble": 16,
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
}
# Events of calls, which are no computation; nor is what they contain.
_CALLS = (COMMS, "c10d::", "c10d_functional::", "_c10d_functional::", "fastcomm", "gloo:", "nccl:")
_DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


def bytes_of(args: Event) -> int:
    """Return the bytes that a call of ``record_param_comms`` gives, or gets if it gives none."""
    elements = int(args.get("In msg nelems", 0)) or int(args.get("Out msg nelems", 0))
    return elements * _WIDTHS.get(str(args.get("dtype")), 1)


class Comms:
    """The calls of a trace; `of` finds the one that an operation comes from."""

    def __init__(self, events: Iterable[Event]) -> None:
        named = (event for event in events if event["name"] == COMMS)
        self.events = sorted(named, key=lambda event: float(event["ts"]))
        self._begins = [float(event["ts"]) for event in self.events]
        self._numbered: dict[str, list[tuple[int, int]]] = {}  # by group: number, place in events
        for place, event in enumerate(self.events):
            args = event["args"]
            if "Seq" in args and args["Collective name"] not in ("send", "recv"):
                of_group = self._numbered.setdefault(str(args.get("Process Group Name")), [])
                bisect.insort(of_group, (int(args["Seq"]), place))

    def of(self, operation: Event, group: str) -> Event | None:
        """Return the call that issued an operation, whose track names ``group``.

        By number, of which a call with several operations has the first; in traces of torch 2.11,
        which have none, for groups that the trace names otherwise, and for messages by time: clocks
        of the profiler and of operations differ by less than a millisecond.
        """
        number = operation["args"]["sequence"] + 1
        numbered = self._numbered.get(group, [])
        at = bisect.bisect_right(numbered, (number, len(self.events)))
        if at and not operation["name"].startswith(("send", "recv")):
            return self.events[numbered[at - 1][1]]
        issued = operation["ts"] - operation["args"]["queued (us)"]
        last = bisect.bisect_right(self._begins, issued + _NEAR)
        near = self.events[max(0, last - 16) : last]
        nearest = min(near, key=lambda event: _distance(event, issued), default=None)
        return nearest if nearest is not None and _distance(nearest, issued) < _NEAR else None


def _distance(event: Event, moment: float) -> float:
    begin, end = interval(event)
    return max(begin - moment, moment - end, 0.0)


@dataclass(frozen=True)
class Operation:
    """A slice of a track of fastcomm, its parts (waiting, moving data), and the track's group."""

    slice: Event
    parts: list[Event]
    group: str


def operations(events: Sequence[Event]) -> list[Operation]:
    """Return the operations on the tracks of fastcomm."""
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"].startswith("fastcomm: ")
    }
    found: dict[int, list[Operation]] = {tid: [] for tid in names}
    for event in sorted(events, key=lambda event: (event.get("ts", 0), not _is_whole(event))):
        if event.get("ph") != "X" or event["tid"] not in names:
            continue
        track = found[event["tid"]]
        if _is_whole(event):
            track.append(Operation(event, [], _group_of(names[event["tid"]])))
        elif track:  # operations of a track do not overlap
            track[-1].parts.append(event)
    return [operation for track in found.values() for operation in track]


def _group_of(track: str) -> str:
    """Return a track's group; "" for continuations, whose operations are counted by themselves."""
    group = re.search(r"group '([^']*)'", track)
    return group[1] if group and "continuations" not in track else ""


def _is_whole(event: Event) -> bool:
    return "sequence" in event.get("args", {})


def is_collective_kernel(event: Event) -> bool:
    """Tell whether an event is a kernel of NCCL."""
    return event.get("cat") == "kernel" and "Collective name" in event.get("args", {})


def is_kernel_of_fastcomm(event: Event) -> bool:
    """Tell whether an event is a kernel of fastcomm, which computes nothing of the model's."""
    return event.get("cat") == "kernel" and "fastcomm::" in event["name"]


def computation(events: Sequence[Event]) -> tuple[list[Interval], list[Interval]]:
    """Return when operators of torch ran on the host, beside calls, and kernels on devices."""
    calls: dict[Any, list[Interval]] = {}
    for event in events:
        if event["name"].startswith(_CALLS):
            calls.setdefault(event["tid"], []).append(interval(event))
    merged_calls = {tid: merged(found) for tid, found in calls.items()}
    host = [
        interval(event)
        for event in events
        if event.get("cat") == "cpu_op"
        and not event["name"].startswith(_CALLS)
        and not _contains(merged_calls.get(event["tid"], []), event["ts"])
    ]
    devices = [
        interval(event)
        for event in events
        if event.get("cat") in _DEVICE_KINDS
        and not is_collective_kernel(event)
        and not is_kernel_of_fastcomm(event)
    ]
    return merged(host), merged(devices)


def interval(event: Event) -> Interval:
    """Return when it began and ended."""
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union as intervals in order, none of which touch."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def overlap(one: Interval, union: Sequence[Interval]) -> float:
    """Return how much of ``one`` lies in a union that `merged` made."""
    total = 0.0
    for begin, end in union[max(0, bisect.bisect_right(union, one) - 1) :]:
        if begin >= one[1]:
            break
        total += max(0.0, min(end, one[1]) - max(begin, one[0]))
    return total


def _contains(union: Sequence[Interval], moment: float) -> bool:
    at = bisect.bisect_right(union, (moment, float("inf"))) - 1
    return at >= 0 and moment <= union[at][1]

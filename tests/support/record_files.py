"""Files of records as a process writes them, made without one."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from fastcomm._records import layout

# What csrc writes; tests/package/records/test_layout.py compares them.
OPERATIONS = {
    "all_reduce": 1,
    "broadcast": 2,
    "all_gather": 3,
    "barrier": 4,
    "send": 24,
    "recv": 25,
}
NAMES = {
    "operation": OPERATIONS,
    "dtype": {"float32": 6, "bfloat16": 15},
    "reduction": {"none": 0, "sum": 1},
    "path": {"one-shot": 2, "pipelined": 3},
    "engine": {"shared memory": 1, "Gloo": 2},
    "outcome": {"ok": 1, "CollectiveTimeoutError": 6, "PeerLostError": 7, "unknown": 15},
}


@dataclass
class MadeCall:
    """A call; times in ns of CLOCK_MONOTONIC, 0 for what has not happened."""

    issued: int
    started: int = 0
    ended: int = 0
    outcome: str = "ok"
    operation: str = "all_reduce"
    dtype: str = "float32"
    reduction: str = "sum"
    group: int = 0
    engine: str = "shared memory"
    sequence: int = 0
    lane: int = 0
    path: str = "one-shot"
    count: int = 1024
    rank: int = -1  # root or peer
    tag: int = 0
    is_async: bool = False
    thread: int = 1


@dataclass
class MadeGroup:
    rank: int
    size: int
    name: str = "0"
    description: str = "group '0' of all ranks"
    token: int = 7
    members: Sequence[int] = ()  # all ranks
    opened: int = 0
    closed: int = 0


def made(
    calls: Sequence[MadeCall],
    groups: Sequence[MadeGroup],
    *,
    pid: int | None = None,
    start_time: int = 0,
    base: int = 0,
) -> bytes:
    """Return a whole file. Its counter counts ns from ``base``, which is before all times."""
    data = bytearray(layout.FILE_BYTES)
    layout._HEADER.pack_into(
        data, 0, layout.MAGIC, layout.VERSION, os.getpid() if pid is None else pid, start_time, 0
    )
    layout._CLOCK.pack_into(data, layout._CLOCK_AT, 5, base, 2, 1_000_005, base + 1_000_000, 2)
    struct.pack_into("=Q", data, layout._NEXT_AT, len(calls))
    lines = "\n".join(
        f"{kind}\t{number}\t{name}" for kind in NAMES for name, number in NAMES[kind].items()
    ).encode()
    data[layout.NAMES_AT : layout.NAMES_AT + len(lines)] = lines
    for place, group in enumerate(groups):
        at = layout.GROUPS_AT + place * layout.GROUP_BYTES
        members = tuple(group.members) or tuple(range(group.size))
        layout._GROUP.pack_into(
            *(data, at, 2, 0, group.token, group.rank, group.size),
            *(_ticks(group.opened, base), _ticks(group.closed, base), len(members), 1),
        )
        for index, each in enumerate((group.name, group.description)):
            begin = at + layout._TEXTS_AT + index * layout._TEXT_BYTES
            data[begin : begin + len(each.encode())] = each.encode()
        struct.pack_into(f"={len(members)}I", data, at + layout._MEMBERS_AT, *members)
    for number, call in enumerate(calls):
        at = layout.CALLS_AT + number % layout.NUM_CALLS * layout.CALL_BYTES
        is_message = call.operation in ("send", "recv")
        flags = layout.FLAG_ASYNC * call.is_async | layout.FLAG_MESSAGE * is_message
        ended = _ticks(call.ended, base) << 4 | NAMES["outcome"][call.outcome]
        layout._CALL.pack_into(
            *(data, at, 2 * number + 2, _ticks(call.issued, base), _ticks(call.started, base)),
            *(ended if call.ended else 0, call.sequence, call.count, 4 * call.count),
            *(OPERATIONS[call.operation], NAMES["dtype"][call.dtype]),
            *(NAMES["reduction"][call.reduction], NAMES["engine"][call.engine]),
            *(flags, call.group),
            *(NAMES["path"].get(call.path, 0) | call.lane << 8, call.rank, call.tag, call.thread),
            1,
        )
    return bytes(data)


def _ticks(time: int, base: int) -> int:
    return time - base if time else 0


def memory_file(data: bytes) -> int:
    """Return a file in memory, as records are, with this in it."""
    fd = os.memfd_create(layout.FILE_NAME)
    os.write(fd, data)
    return fd

"""The file of a process's records, and how to read it while it is written.

The layout is that of ``csrc/core/records.h``, which argues the order of the writer's stores; a test
compares both. A file may be of any process of this user: nothing in it is believed. Numbers are
taken as they are, text loses what a terminal would obey, and everything is read into this process's
memory first, so that no file that shrinks can end it.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass

FILE_NAME = "fastcomm-records"  # of memfd_create: a link in /proc shows "/memfd:" before it

MAGIC = int.from_bytes(b"fcrecord", "little")
VERSION = 1

PAGE = 4096
HEADER_AT, NAMES_AT, GROUPS_AT = 0, PAGE, 2 * PAGE
NUM_GROUPS, NUM_CALLS = 256, 8192
GROUP_BYTES, CALL_BYTES = PAGE, 128
CALLS_AT = GROUPS_AT + NUM_GROUPS * GROUP_BYTES
FILE_BYTES = CALLS_AT + NUM_CALLS * CALL_BYTES

# magic, version, pid, start of the process in ticks since boot, date - monotonic clock in ns
_HEADER = struct.Struct("=QIiQq")
_CLOCK_AT = 64
# first reading: counter, ns; stamp of the latest; latest reading: counter, ns; stamp once more
_CLOCK = struct.Struct("=QQQQQQ")
_NEXT_AT, _DROPPED_AT = 128, 192  # on cache lines of their own

# stamp, token, rank, size, opened, closed, number of members in the list, words
_GROUP = struct.Struct("=QQQiiQQII")
_TEXTS_AT, _TEXT_BYTES = 64, 64  # name, description, engines from there on
NUM_ENGINES = 4
_MEMBERS_AT = 1024
NUM_MEMBERS = (GROUP_BYTES - _MEMBERS_AT) // 4

# stamp; issued, started, ended and how; sequence, elements, bytes; operation, dtype, reduction,
# engine, flags, place of the group; path and lane; root or peer, tag; thread; stamp of the group
_CALL = struct.Struct("=QQQQQQQBBBBHHQiiQQ32x")
# of those the stamp, the end, the sequence, flags, place of the group, path and lane, stamp of it
_SKIMMED = struct.Struct("=Q16xQQ20xHHQ16xQ32x")
_OPEN_SEQUENCE = 2**64 - 1
_OUTCOME_BITS = 4
FLAG_ASYNC, FLAG_MESSAGE = 1, 2

_KINDS = ("operation", "dtype", "reduction", "path", "outcome")


class RecordsError(Exception):
    """A file is not what it should be; the text says why."""


@dataclass(frozen=True)
class Group:
    """A process group as one of its ranks has written it down."""

    token: str  # the same on all ranks of the group, and of no other
    name: str
    description: str
    rank: int
    size: int
    members: tuple[int, ...]  # the ranks' numbers in the job; of a very large group the first ones
    engines: tuple[str, ...]  # names, by number
    opened: int  # ns of CLOCK_MONOTONIC, as all times here
    closed: int | None  # None: it is in use


@dataclass(frozen=True)
class Call:
    """One call of a rank. Times are in ns of CLOCK_MONOTONIC."""

    number: int  # of the process
    group: Group | None  # None: the place has been given to another group
    operation: str  # "all_reduce"
    dtype: str  # "float32"
    reduction: str  # "sum"; "none" if the operation does not reduce
    engine: str  # "shared memory", "Gloo"
    path: str  # the algorithm; "" until the engine has chosen one, or if it does not say
    sequence: int | None  # of the group and lane, as messages name it; None if there is none yet
    lane: int  # 0: what the program issues; else by continuations
    count: int  # elements of this rank's message
    bytes: int
    root: int | None  # of the group
    peer: int | None  # of a message; None also for a receive from any rank
    tag: int
    is_async: bool
    is_message: bool
    thread: int  # as the process numbers it
    issued: int
    started: int | None  # all ranks that it needs had come; None: not yet, or it is not told
    ended: int | None
    outcome: str | None  # "ok", or the name of an error, or "unknown"; None: it is open


@dataclass(frozen=True)
class Snapshot:
    """What one file held at one moment."""

    pid: int  # as the process itself sees it
    start_time: int  # field 22 of /proc/PID/stat
    to_date: int  # ns to add to a time for the date
    groups: tuple[Group, ...]
    calls: tuple[Call, ...]  # by number; entries written meanwhile are left out
    issued: int  # how many calls the process has issued
    dropped: int  # calls without a record: too many were open
    torn: int  # entries left out


class _Clock:
    """Ticks of the writer's counter as ns of CLOCK_MONOTONIC."""

    def __init__(self, data: bytes) -> None:
        words: tuple[int, ...] = _CLOCK.unpack_from(data, _CLOCK_AT)
        first, self._ns, before, latest, latest_ns, after = words
        if before != after or before % 2:
            raise RecordsError("the clock was being set")
        if latest <= first or latest_ns <= self._ns:
            raise RecordsError("the clock runs backwards")
        self._first = first
        self._ticks, self._span = latest - first, latest_ns - self._ns

    def ns(self, ticks: int) -> int:
        """Return the time of a count, which counts from the first reading."""
        return self._ns + ticks * self._span // self._ticks


def read(fd: int, last: int | None = None) -> Snapshot:
    """Read the records in an open file. Raises RecordsError, or OSError of the system.

    An entry is taken if its stamp, read before, and read again after the entry, says that it was
    complete and the same all the time.

    Args:
        fd: the file, open for reading.
        last: take only this many of the newest calls, with those that are open, and of each lane of
            each group the newest collective, however old. None: all calls. Few are read faster.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise RecordsError("it is not a regular file")
    if status.st_size < _HEADER.size:
        raise RecordsError(f"it has {status.st_size} bytes only")
    magic, version, *_ = _HEADER.unpack(_bytes(fd, 0, _HEADER.size))
    if magic != MAGIC:
        raise RecordsError("it does not begin as records do")
    if version != VERSION:
        raise RecordsError(
            f"its layout has version {version}, and this fastcomm reads version {VERSION}: "
            "ask with the fastcomm that the job uses"
        )
    if status.st_size != FILE_BYTES:
        raise RecordsError(f"it has {status.st_size} bytes, not {FILE_BYTES}")
    for _ in range(100):
        before, data, after = (_bytes(fd, 0, FILE_BYTES) for _ in range(3))
        try:
            clock = _Clock(data)
        except RecordsError as error:
            wrong = error
            continue
        return _parsed(before, data, after, clock, last)
    raise wrong


def _bytes(fd: int, offset: int, length: int) -> bytes:
    parts = []
    while length > 0:
        part = os.pread(fd, length, offset)
        if not part:
            raise RecordsError("it has become shorter")
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def text(raw: bytes) -> str:
    """Return text up to a NUL, without what a terminal would take for a command."""
    decoded = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in decoded)


def _names(data: bytes) -> dict[str, dict[int, str]]:
    """Return the names of numbers, by kind. Lines are: kind, number, name, with tabs between."""
    names: dict[str, dict[int, str]] = {kind: {} for kind in _KINDS}
    for line in data[NAMES_AT:GROUPS_AT].split(b"\0", 1)[0].split(b"\n"):
        kind, _, rest = line.partition(b"\t")
        number, _, name = rest.partition(b"\t")
        table = names.get(text(kind))
        if table is not None and number.isdigit() and len(number) < 4:
            table[int(number)] = text(name)
    return names


def _is_whole(stamp: int, before: bytes, after: bytes, at: int) -> bool:
    same = before[at : at + 8] == after[at : at + 8] == stamp.to_bytes(8, "little")
    return same and stamp != 0 and stamp % 2 == 0


def _chosen(data: bytes, last: int | None) -> Iterable[int]:
    """Return where the calls begin that `read` is asked for, and maybe empty places."""
    if last is None:
        return range(CALLS_AT, FILE_BYTES, CALL_BYTES)
    (issued,) = struct.unpack_from("=Q", data, _NEXT_AT)
    first = 2 * (issued - last + 1)  # stamp of the first of the last ones
    chosen = set()
    newest: dict[tuple[int, int, int], tuple[int, int]] = {}  # stamp and place, by group and lane
    at = CALLS_AT
    for stamp, ended, sequence, flags, place, path, group in _SKIMMED.iter_unpack(
        memoryview(data)[CALLS_AT:]
    ):
        if stamp >= first or not ended or stamp % 2:
            chosen.add(at)
        if not flags & FLAG_MESSAGE and sequence != _OPEN_SEQUENCE:
            lane = (place, group, path >> 8 & 0xFF)
            if lane not in newest or newest[lane] < (stamp, at):
                newest[lane] = (stamp, at)
        at += CALL_BYTES
    return chosen.union(at for _, at in newest.values())


def _parsed(before: bytes, data: bytes, after: bytes, clock: _Clock, last: int | None) -> Snapshot:
    names = _names(data)
    groups: dict[tuple[int, int], Group] = {}
    torn = 0
    for place in range(NUM_GROUPS):
        at = GROUPS_AT + place * GROUP_BYTES
        stamp = _GROUP.unpack_from(data, at)[0]
        if stamp == 0:
            continue
        if _is_whole(stamp, before, after, at):
            groups[place, stamp] = _group(data, at, clock)
        else:
            torn += 1
    calls = []
    for at in _chosen(data, last):
        if data[at : at + 8] == b"\0" * 8:
            continue
        if _is_whole(int.from_bytes(data[at : at + 8], "little"), before, after, at):
            calls.append(_call(data, at, clock, groups, names))
        else:
            torn += 1
    calls.sort(key=lambda call: call.number)
    _, _, pid, start_time, to_date = _HEADER.unpack_from(data)
    (issued,) = struct.unpack_from("=Q", data, _NEXT_AT)
    (dropped,) = struct.unpack_from("=Q", data, _DROPPED_AT)
    return Snapshot(
        pid, start_time, to_date, tuple(groups.values()), tuple(calls), issued, dropped, torn
    )


def _group(data: bytes, at: int, clock: _Clock) -> Group:
    _, high, low, rank, size, opened, closed, count, _ = _GROUP.unpack_from(data, at)
    texts = [
        text(data[begin : begin + _TEXT_BYTES])
        for begin in range(at + _TEXTS_AT, at + _MEMBERS_AT, _TEXT_BYTES)
    ]
    listed = min(count, NUM_MEMBERS)
    return Group(
        token=f"{high:016x}{low:016x}",
        name=texts[0],
        description=texts[1],
        rank=rank,
        size=size,
        members=struct.unpack_from(f"={listed}I", data, at + _MEMBERS_AT),
        engines=tuple(texts[2 : 2 + NUM_ENGINES]),
        opened=clock.ns(opened),
        closed=clock.ns(closed) if closed else None,
    )


def _call(
    data: bytes,
    at: int,
    clock: _Clock,
    groups: dict[tuple[int, int], Group],
    names: dict[str, dict[int, str]],
) -> Call:
    words = _CALL.unpack_from(data, at)
    stamp, issued, started, ended, sequence, count, size = words[:7]
    operation, dtype, reduction, engine, flags, place = words[7:13]
    path, rank, tag, thread, group_stamp = words[13:]
    group = groups.get((place, group_stamp))
    is_message = bool(flags & FLAG_MESSAGE)
    other = None if rank < 0 else rank
    outcome = ended & (2**_OUTCOME_BITS - 1)
    return Call(
        number=stamp // 2 - 1,
        group=group,
        operation=names["operation"].get(operation, f"operation {operation}"),
        dtype=names["dtype"].get(dtype, f"dtype {dtype}"),
        reduction=names["reduction"].get(reduction, f"reduction {reduction}"),
        engine=group.engines[engine] if group is not None and engine < NUM_ENGINES else "",
        path=names["path"].get(path & 0xFF, ""),
        sequence=None if sequence == _OPEN_SEQUENCE else sequence,
        lane=path >> 8 & 0xFF,
        count=count,
        bytes=size,
        root=None if is_message else other,
        peer=other if is_message else None,
        tag=tag,
        is_async=bool(flags & FLAG_ASYNC),
        is_message=is_message,
        thread=thread,
        issued=clock.ns(issued),
        started=clock.ns(started) if started else None,
        ended=clock.ns(ended >> _OUTCOME_BITS) if ended else None,
        outcome=names["outcome"].get(outcome, "unknown") if ended else None,
    )

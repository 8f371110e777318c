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

from fastcomm._records.snapshot import Call, Group, Snapshot

FILE_NAME = "fastcomm-records"  # of memfd_create: a link in /proc shows "/memfd:" before it

MAGIC = int.from_bytes(b"fcrecord", "little")
VERSION = 1

PAGE = 4096
NAMES_AT, GROUPS_AT = PAGE, 2 * PAGE
NUM_GROUPS, NUM_CALLS = 256, 8192
GROUP_BYTES, CALL_BYTES = PAGE, 128
CALLS_AT = GROUPS_AT + NUM_GROUPS * GROUP_BYTES
FILE_BYTES = CALLS_AT + NUM_CALLS * CALL_BYTES
_GROUP_PLACES = range(GROUPS_AT, CALLS_AT, GROUP_BYTES)
_CALL_PLACES = range(CALLS_AT, FILE_BYTES, CALL_BYTES)

# magic, version, pid, start of the process in ticks since boot, date - monotonic clock in ns
_HEADER = struct.Struct("=QIiQq")
_CLOCK_AT = 64
# first reading: counter, ns; stamp of the latest; latest reading: counter, ns; stamp once more
_CLOCK = struct.Struct("=QQQQQQ")
_NEXT_AT, _DROPPED_AT = 128, 192  # on cache lines of their own

# stamp, token, rank, size, opened, closed, members in the list, of how many groups it has been
_GROUP = struct.Struct("=QQQiiQQII")
_TEXTS_AT, _TEXT_BYTES = 64, 64  # name and description from there on
_MEMBERS_AT = 1024
NUM_MEMBERS = (GROUP_BYTES - _MEMBERS_AT) // 4

# stamp; issued, started, ended and how; sequence, elements, bytes; operation, dtype, reduction,
# engine, flags, page of the group; path and lane; root or peer, tag; thread; that page's count of
# groups
_CALL = struct.Struct("=QQQQQQQBBBBHHQiiQQ32x")
# of those the stamp, the end, the sequence, flags, place of the group, path and lane, stamp of it
_SKIMMED = struct.Struct("=Q16xQQ20xHHQ16xQ32x")
_OPEN_SEQUENCE = 2**64 - 1
_OUTCOME_BITS = 4
FLAG_ASYNC, FLAG_MESSAGE = 1, 2

_KINDS = ("operation", "dtype", "reduction", "path", "engine", "outcome")


class RecordsError(Exception):
    """A file is not what it should be; the text says why."""


class _Clock:
    """Ticks of the writer's counter as ns of CLOCK_MONOTONIC."""

    def __init__(self, before: bytes, data: bytes, after: bytes) -> None:
        stamps = {_CLOCK.unpack_from(each, _CLOCK_AT)[2] for each in (before, after)}
        words: tuple[int, ...] = _CLOCK.unpack_from(data, _CLOCK_AT)
        first, self._ns, stamp, latest, latest_ns, end = words
        if stamps != {stamp} or stamp != end or stamp % 2:
            raise RecordsError("the clock was being set")
        if latest <= first or latest_ns <= self._ns:
            raise RecordsError("the clock runs backwards")
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
    return _parsed(*_readings(fd), last)


def names_in(fd: int) -> dict[str, dict[int, str]]:
    """Return a file's names of numbers, by kind. Raises as `read` does."""
    return _names(_readings(fd)[1])


def copied(fd: int) -> bytes:
    """Return what is in an open file, for `parse`. Raises as `read` does.

    Entries that were written meanwhile have odd stamps there, so that `parse` leaves them out.
    """
    before, data, after, _ = _readings(fd)
    copy = bytearray(data)
    for at in (*_GROUP_PLACES, *_CALL_PLACES):
        stamp = int.from_bytes(data[at : at + 8], "little")
        if stamp and not _is_whole(stamp, before, after, at):
            copy[at : at + 8] = (stamp | 1).to_bytes(8, "little")
    return bytes(copy)


def parse(data: bytes) -> Snapshot:
    """Read records in a copy of a file. Raises RecordsError."""
    _check(data[: _HEADER.size], len(data))
    return _parsed(data, data, data, _Clock(data, data, data), None)


def _readings(fd: int) -> tuple[bytes, bytes, bytes, _Clock]:
    """Return a file's bytes, read three times one after the other, and the clock of the second."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise RecordsError("it is not a regular file")
    _check(_bytes(fd, 0, min(_HEADER.size, status.st_size)), status.st_size)
    for _ in range(100):
        before, data, after = (_bytes(fd, 0, FILE_BYTES) for _ in range(3))
        try:
            return before, data, after, _Clock(before, data, after)
        except RecordsError as error:
            wrong = error
    raise wrong


def _check(header: bytes, size: int) -> None:
    """Raise RecordsError unless a file of ``size`` bytes begins as records do."""
    if size < _HEADER.size:
        raise RecordsError(f"it has {size} bytes only")
    magic, version, *_ = _HEADER.unpack(header)
    if magic != MAGIC:
        raise RecordsError("it does not begin as records do")
    if version != VERSION:
        raise RecordsError(
            f"its layout has version {version}, and this fastcomm reads version {VERSION}: "
            "ask with the fastcomm that the job uses"
        )
    if size != FILE_BYTES:
        raise RecordsError(f"it has {size} bytes, not {FILE_BYTES}")


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
    for place, at in enumerate(_GROUP_PLACES):
        stamp = _GROUP.unpack_from(data, at)[0]
        if stamp == 0:
            continue
        if _is_whole(stamp, before, after, at):
            times = _GROUP.unpack_from(data, at)[-1]
            groups[place, times] = _group(data, at, clock)
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
    dropped, passed = struct.unpack_from("=QQ", data, _DROPPED_AT)
    return Snapshot(
        pid=pid,
        start_time=start_time,
        to_date=to_date,
        groups=tuple(groups.values()),
        calls=tuple(calls),
        issued=max(issued - passed, 0),
        dropped=dropped,
        torn=torn,
    )


def _group(data: bytes, at: int, clock: _Clock) -> Group:
    _, high, low, rank, size, opened, closed, count, _ = _GROUP.unpack_from(data, at)
    texts = [
        text(data[begin : begin + _TEXT_BYTES])
        for begin in (at + _TEXTS_AT, at + _TEXTS_AT + _TEXT_BYTES)
    ]
    listed = min(count, NUM_MEMBERS)
    return Group(
        token=f"{high:016x}{low:016x}",
        name=texts[0],
        description=texts[1],
        rank=rank,
        size=size,
        members=struct.unpack_from(f"={listed}I", data, at + _MEMBERS_AT),
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
    path, rank, tag, thread, times = words[13:]
    group = groups.get((place, times))
    is_message = bool(flags & FLAG_MESSAGE)
    other = None if rank < 0 else rank
    outcome = ended & (2**_OUTCOME_BITS - 1)
    return Call(
        number=stamp // 2 - 1,
        group=group,
        operation=names["operation"].get(operation, f"operation {operation}"),
        dtype=names["dtype"].get(dtype, f"dtype {dtype}"),
        reduction=names["reduction"].get(reduction, f"reduction {reduction}"),
        engine=names["engine"].get(engine, f"engine {engine}"),
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

"""What a file of records says, and that nothing in it can do harm."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.record_files import MadeCall, MadeGroup, made, memory_file

from fastcomm._records import layout
from fastcomm._records.as_json import as_json
from fastcomm._records.exposition import Exposition
from fastcomm._records.find import Found, RankFile
from fastcomm._records.report import report, text
from fastcomm._records.snapshot import Snapshot

SECOND = 10**9
CALLS = [
    MadeCall(2 * SECOND, 2 * SECOND + 5, 2 * SECOND + 9, sequence=0),
    MadeCall(3 * SECOND, operation="broadcast", sequence=1, rank=1, lane=2, is_async=True),
    MadeCall(4 * SECOND, operation="recv", rank=3, tag=7, ended=5 * SECOND, path=""),
]
GROUPS = [MadeGroup(2, 4, opened=SECOND, members=(4, 5, 6, 7))]
GOOD = made(CALLS, GROUPS, pid=12, start_time=34)


@pytest.fixture
def fd() -> Iterator[int]:
    opened = memory_file(GOOD)
    yield opened
    os.close(opened)


def _read(data: bytes, last: int | None = None) -> Snapshot:
    opened = memory_file(data)
    try:
        return layout.read(opened, last)
    finally:
        os.close(opened)


def test_what_is_written_is_read(fd: int) -> None:
    seen = layout.read(fd)
    assert (seen.pid, seen.start_time, seen.issued, seen.dropped, seen.torn) == (12, 34, 3, 0, 0)
    (group,) = seen.groups
    assert (group.name, group.description, group.rank, group.size) == (
        "0",
        "group '0' of all ranks",
        2,
        4,
    )
    assert (group.opened, group.closed, group.members) == (SECOND, None, (4, 5, 6, 7))
    first, second, third = seen.calls
    assert (first.operation, first.dtype, first.reduction) == ("all_reduce", "float32", "sum")
    assert (first.issued, first.started, first.ended) == (
        2 * SECOND,
        2 * SECOND + 5,
        2 * SECOND + 9,
    )
    assert (first.engine, first.path, first.outcome) == ("shared memory", "one-shot", "ok")
    assert (first.count, first.bytes, first.sequence, first.lane) == (1024, 4096, 0, 0)
    assert (second.root, second.peer, second.lane, second.is_async) == (1, None, 2, True)
    assert (second.started, second.ended, second.outcome) == (None, None, None)
    assert (third.root, third.peer, third.tag, third.is_message) == (None, 3, 7, True)
    assert all(call.group == group for call in seen.calls)


def test_the_last_calls_alone() -> None:
    number = layout.NUM_CALLS
    calls = [MadeCall(n + 1, ended=n + 2, sequence=n) for n in range(number)]
    calls[5].ended = 0
    calls[7].lane = 3  # the newest of its lane
    calls[9].operation = "send"
    data = made(calls, [MadeGroup(0, 2)])
    assert [call.number for call in _read(data, 2).calls] == [5, 7, number - 2, number - 1]
    assert [call.number for call in _read(data, 0).calls] == [5, 7, number - 1]
    whole = _read(data)
    assert len(whole.calls) == number
    assert _read(data, number) == whole == _read(data, 2 * number)


@pytest.mark.parametrize("stamp", [3, 2**64 - 1, 1])
@pytest.mark.parametrize("at", [layout.CALLS_AT, layout.GROUPS_AT])
def test_an_entry_that_is_being_written_is_left_out(stamp: int, at: int) -> None:
    data = bytearray(GOOD)
    struct.pack_into("=Q", data, at, stamp)
    seen = _read(bytes(data))
    assert seen.torn == 1
    assert (len(seen.groups), len(seen.calls)) == ((1, 2) if at == layout.CALLS_AT else (0, 3))
    assert all(call.group is None for call in seen.calls) == (at == layout.GROUPS_AT)


@pytest.mark.parametrize("which", [1, 2])  # while the words are read, or after
def test_an_entry_that_changes_meanwhile_is_left_out(
    fd: int, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread
    seen: list[int] = []

    def write(file: int, length: int, offset: int) -> bytes:
        if length == layout.FILE_BYTES:
            if len(seen) == which:
                os.pwrite(fd, struct.pack("=Q", 8), layout.CALLS_AT)
            seen.append(length)
        return read(file, length, offset)

    monkeypatch.setattr(os, "pread", write)
    snapshot = layout.read(fd)
    assert snapshot.torn == 1 and [call.number for call in snapshot.calls] == [1, 2]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it has 0 bytes only"),
        (GOOD[:31], "it has 31 bytes only"),
        (GOOD[:-1], "bytes, not"),
        (GOOD + b"x", "bytes, not"),
        (b"x" + GOOD[1:], "does not begin as records do"),
        (GOOD[:8] + struct.pack("=I", 2) + GOOD[12:], "version 2, and this fastcomm reads"),
        (GOOD[:64] + struct.pack("=QQQQQQ", 5, 0, 2, 5, 9, 2) + GOOD[112:], "clock runs backwards"),
        (GOOD[:64] + struct.pack("=QQQQQQ", 5, 9, 2, 6, 9, 2) + GOOD[112:], "clock runs backwards"),
        (GOOD[:64] + struct.pack("=QQQQQQ", 5, 0, 3, 6, 9, 3) + GOOD[112:], "clock was being set"),
        (GOOD[:64] + struct.pack("=QQQQQQ", 5, 0, 2, 6, 9, 4) + GOOD[112:], "clock was being set"),
    ],
)
def test_what_is_no_file_of_records(data: bytes, why: str) -> None:
    with pytest.raises(layout.RecordsError, match=why):
        _read(data)


def test_what_is_no_regular_file() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(layout.RecordsError, match="not a regular file"):
            layout.read(reading)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_clock_that_was_being_set_is_read_again(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.pwrite(fd, struct.pack("=Q", 3), layout._CLOCK_AT + 16)
    read = os.pread
    seen: list[int] = []

    def set_clock(file: int, length: int, offset: int) -> bytes:
        seen.append(length)
        if len(seen) == 8:
            os.pwrite(fd, struct.pack("=Q", 2), layout._CLOCK_AT + 16)
        return read(file, length, offset)

    monkeypatch.setattr(os, "pread", set_clock)
    assert len(layout.read(fd).calls) == 3


def test_text_gives_no_commands_to_a_terminal() -> None:
    hostile = "\x1b[2J\x07\x9b\r\n\u202e\u2028"
    seen = _read(made(CALLS, [MadeGroup(2, 4, name=hostile, description="\x7f")]))
    assert seen.groups[0].name == "?[2J???" + "?" * 3 and seen.groups[0].description == "?"
    assert layout.text(b"\xff\xfea\0b") == "\ufffd\ufffda"


# Mostly where something is.
PLACES = st.one_of(
    st.integers(0, 256),
    *(st.integers(at, at + 256) for at in (layout.NAMES_AT, layout.GROUPS_AT, layout.CALLS_AT)),
    st.integers(0, layout.FILE_BYTES - 1),
)
WORDS = st.one_of(
    st.binary(min_size=1, max_size=64),
    st.sampled_from([0, 1, 2, 2**31 - 1, 2**31, 2**63, 2**64 - 1]).map(
        lambda n: n.to_bytes(8, "little")
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PLACES, WORDS), min_size=1, max_size=8), st.sampled_from([None, 0, 2]))
def test_any_bytes_anywhere(written: list[tuple[int, bytes]], last: int | None) -> None:
    data = bytearray(GOOD)
    for at, word in written:
        data[at : at + len(word)] = word
    try:
        snapshot = _read(bytes(data[: layout.FILE_BYTES]), last)
    except layout.RecordsError:
        return
    ranks = (RankFile(snapshot, None, ()), RankFile(_read(GOOD), None, ()))
    found = Found(ranks, (), time.monotonic_ns())
    seen = report(found, (), 5.0, 512)
    assert text(seen).replace("\n", "").isprintable()
    assert json.loads(json.dumps(as_json(seen)))["jobs"]
    assert Exposition().of(found).isascii()

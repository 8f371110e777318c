"""Records of a job in one file, and files that are something else."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.record_files import MadeCall, MadeGroup, made, memory_file

from fastcomm._records import layout, saved
from fastcomm._records.layout import RecordsError
from fastcomm._records.saved import Facts

BASE = 1_000_000


def _file(rank: int) -> bytes:
    calls = [MadeCall(issued=BASE + 10, started=BASE + 20, ended=BASE + 30)]
    return made(calls, [MadeGroup(rank, 2)], pid=100 + rank, base=BASE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    files = [(_file(rank), Facts(rank, 4711 + rank, "sleeping", BASE + 99)) for rank in (1, 0)]
    saved.save(tmp_path / "job", files, why="rank 1 \x1b[31m timed out")
    return tmp_path / "job"


def test_what_is_saved_is_loaded(path: Path) -> None:
    loaded = saved.load(path)
    assert (loaded.host, loaded.why) == (os.uname().nodename, "rank 1 ?[31m timed out")
    assert [(rank.number, rank.pid, rank.state, rank.read_at) for rank in loaded.ranks] == [
        (0, 4711, "sleeping", BASE + 99),
        (1, 4712, "sleeping", BASE + 99),
    ]
    assert loaded.ranks[1].data == _file(1)
    assert loaded.ranks[1].snapshot == layout.parse(_file(1))
    assert [each.name for each in path.parent.iterdir()] == ["job"]


def test_a_copy_has_what_the_file_has() -> None:
    fd = memory_file(_file(1))
    try:
        assert layout.copied(fd) == _file(1)
        assert layout.parse(layout.copied(fd)) == layout.read(fd)
    finally:
        os.close(fd)


def test_a_copy_marks_what_was_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = bytearray(_file(0))
    changed[layout.CALLS_AT] = 4  # the stamp of a later call
    readings = [_file(0), _file(0), bytes(changed)]

    def fake(fd: int, offset: int, length: int) -> bytes:
        return _file(0)[:length] if length < layout.FILE_BYTES else readings.pop(0)

    monkeypatch.setattr(layout, "_bytes", fake)
    fd = memory_file(_file(0))
    try:
        snapshot = layout.parse(layout.copied(fd))
    finally:
        os.close(fd)
    assert (snapshot.calls, snapshot.torn) == ((), 1)


def test_a_rank_is_saved_once(tmp_path: Path) -> None:
    twice = [(_file(0), Facts(0, 1, "", 0))] * 2
    with pytest.raises(ValueError, match="each of them once"):
        saved.save(tmp_path / "job", twice)
    assert not list(tmp_path.iterdir())


def _rewritten(path: Path, entries: dict[str, bytes | None]) -> None:
    """Replace entries; None leaves one out."""
    with tarfile.open(path) as file:
        members = [(member, file.extractfile(member)) for member in file]
        content = {member.name: data.read() for member, data in members if data is not None}
    with tarfile.open(path, "w:gz") as file:
        for name, data in (content | entries).items():
            if data is not None:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))


def _about(**changes: Any) -> bytes:
    rank = {"rank": 0, "pid": 1, "state": "", "read_at": 0}
    about = {"version": "1", "date": "", "host": "", "why": "", "ranks": [rank]}
    return json.dumps(about | changes).encode()


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"rank-1.records": None}, "no rank-1.records"),
        ({"about.json": None}, "no about.json"),
        ({"rank-1.records": _file(1)[:-1]}, "rank-1.records has"),
        ({"rank-1.records": b"\0" * 2**26}, "rank-1.records has 67108864 bytes"),
        ({"rank-1.records": bytes(layout.FILE_BYTES)}, "does not begin as records do"),
        ({"about.json": b" " * 2**21}, "about.json has 2097152 bytes"),
        ({"about.json": b"{"}, "no saved records"),
        ({"about.json": b"[" * 2**19}, "no saved records"),
        ({"about.json": b"\xff"}, "no saved records"),
        ({"about.json": b"[]"}, "no saved records"),
        ({"about.json": b"{}"}, "no saved records"),
        ({"about.json": _about(ranks=[{"rank": "../x"}])}, "is no number"),
        ({"about.json": _about(ranks=[1])}, "no saved records"),
        ({"about.json": _about(host=1)}, "is no text"),
        ({"about.json": _about(ranks=[json.loads(_about())["ranks"][0]] * 2)}, "twice"),
    ],
)
def test_what_is_wrong_is_named(path: Path, entries: dict[str, bytes | None], why: str) -> None:
    _rewritten(path, entries)
    with pytest.raises(RecordsError, match=why) as raised:
        saved.load(path)
    assert str(raised.value).startswith(str(path))


def test_a_file_without_packing_is_loaded(path: Path) -> None:
    loaded = saved.load(path)
    path.write_bytes(gzip.decompress(path.read_bytes()))
    assert saved.load(path) == loaded


def test_what_unpacks_to_too_much_is_refused(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(saved._MOST_BYTES + 1)))
    with pytest.raises(RecordsError, match="more than"):
        saved.load(path)


def test_links_are_not_followed(path: Path) -> None:
    with tarfile.open(path, "w") as file:
        info = tarfile.TarInfo("about.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        file.addfile(info)
    with pytest.raises(RecordsError, match="is no file"):
        saved.load(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x1f\x8b", bytes(1024), os.urandom(1000)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "job").write_bytes(content)
    with pytest.raises(RecordsError):
        saved.load(tmp_path / "job")


def test_a_cut_or_changed_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for end in range(0, len(whole) - 1, len(whole) // 20):
        path.write_bytes(whole[:end])
        with pytest.raises(RecordsError):
            saved.load(path)
    for at in range(0, len(whole), len(whole) // 150):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            saved.load(path)
        except RecordsError:
            continue

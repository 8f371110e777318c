"""Records are found whatever state their process is in, and nothing else is taken for them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked import RIGHT, in_a_child
from support.record_files import MadeCall, MadeGroup, made
from support.record_ranks import Ranks, ranks

from fastcomm._records import find, layout, processes

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")


@pytest.fixture
def held() -> Iterator[Ranks]:
    with ranks() as started:
        yield started


def _numbers(found: find.Found) -> list[int]:
    return sorted(rank.snapshot.groups[0].rank for rank in found.ranks)


def test_a_job_is_found_from_any_of_its_ranks(held: Ranks) -> None:
    files = held.held_up()
    with ranks() as others:
        other = others.start()
        for file in files:
            found = find.find(file.pid)
            assert _numbers(found) == [0, 1, 2, 3] and not found.warnings
            processes_seen = [rank.process for rank in found.ranks]
            assert {p.pid for p in processes_seen if p is not None} == {f.pid for f in files}
        assert [rank.holders for rank in find.find(other.pid).ranks] == [(other.pid,)]
        everyone = {rank.process.pid for rank in find.find().ranks if rank.process is not None}
        assert everyone >= {other.pid, *(file.pid for file in files)}


def test_a_job_is_found_from_what_has_started_it(held: Ranks) -> None:
    files = held.held_up()
    found = find.find(os.getpid())
    assert {rank.snapshot.pid for rank in found.ranks} == {file.pid for file in files}
    assert not find.find(2**22 + 1).ranks  # more than Linux numbers


def test_a_job_reaches_beyond_the_groups_of_a_process(held: Ranks) -> None:
    pids = []
    for tokens in ((1,), (1, 2), (2, 3), (4,)):
        groups = [MadeGroup(0, 1, token=held.token * 10 + token) for token in tokens]
        pids.append(held.start(data=made([], groups, pid=0)).pid)
    assert sorted(rank.holders[0] for rank in find.find(pids[0]).ranks) == sorted(pids[:3])
    assert [rank.holders[0] for rank in find.find(pids[3]).ranks] == [pids[3]]


def test_a_stopped_process_is_read(held: Ranks) -> None:
    file = held.start()
    file.stop()
    (rank,) = find.find(file.pid).ranks
    assert rank.process is not None and rank.process.is_stopped


def test_a_dead_rank_is_read_through_a_peer(held: Ranks) -> None:
    dead = held.start(0, 2, [MadeCall(issued=time.monotonic_ns())])
    peer = held.start(1, 2, peers=[dead])
    dead.kill(reap=False)
    by_rank = {rank.snapshot.groups[0].rank: rank for rank in find.find(peer.pid).ranks}
    zombie = by_rank[0].process
    assert zombie is not None and zombie.pid == dead.pid and zombie.is_dead
    dead.kill()
    for pid in (peer.pid, dead.pid):
        by_rank = {rank.snapshot.groups[0].rank: rank for rank in find.find(pid).ranks}
        assert by_rank[0].process is None and by_rank[0].holders == (peer.pid,)
        assert by_rank[0].snapshot.calls[0].ended is None
        assert by_rank[1].process is not None


def test_others_that_look_hold_nothing(held: Ranks) -> None:
    file = held.start()
    looks = os.open(file.path, os.O_RDONLY)
    try:
        (rank,) = find.find(file.pid).ranks
        assert rank.holders == (file.pid,)
        assert os.getpid() not in {pid for rank in find.find().ranks for pid in rank.holders}
    finally:
        os.close(looks)


def test_a_forked_child_owns_no_file(held: Ranks) -> None:
    file = held.start(forks=True)
    for pid in (file.pid, file.child):
        (rank,) = find.find(pid).ranks
        assert rank.process is not None and rank.process.pid == file.pid
        assert set(rank.holders) == {file.pid, file.child}
    file.kill()
    (rank,) = find.find(file.child).ranks
    assert rank.process is None


def test_a_number_that_is_used_again_is_not_the_same_process(held: Ranks) -> None:
    data = made([], [MadeGroup(0, 1, token=held.token)], start_time=17)
    pid = os.getpid()  # that file says that it is of this process, which began at another time
    file = held.start(data=data)
    (rank,) = find.find(file.pid).ranks
    assert rank.snapshot.pid == pid and rank.process is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x", "it has 1 bytes only"),
        (bytes(layout.FILE_BYTES), "it does not begin as records do"),
        (bytes(layout.FILE_BYTES + 1), f"it has {layout.FILE_BYTES + 1} bytes, not"),
        (made([], [])[:-1], f"it has {layout.FILE_BYTES - 1} bytes, not"),
    ],
)
def test_what_cannot_be_read_is_a_warning_and_stops_nothing(
    held: Ranks, data: bytes, why: str
) -> None:
    good = held.start(0, 2)
    bad = held.start(data=data, peers=[good])
    found = find.find(good.pid)
    assert len(found.ranks) == 1
    (line,) = [line for line in found.warnings if line.startswith(f"process {bad.pid}: ")]
    assert why in line


def test_a_file_that_shrinks_while_it_is_read(held: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    file = held.start()
    read, number = os.pread, os.stat(file.path).st_ino

    def shrink(fd: int, length: int, offset: int) -> bytes:
        if length == layout.FILE_BYTES and os.fstat(fd).st_ino == number:
            os.truncate(file.path, layout.PAGE)
        return read(fd, length, offset)

    monkeypatch.setattr(os, "pread", shrink)
    found = find.find(file.pid)
    assert not found.ranks and any("it has become shorter" in line for line in found.warnings)


def test_a_fifo_of_that_name_is_not_opened(
    held: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / layout.FILE_NAME
    os.mkfifo(path)
    monkeypatch.setattr(find, "_LINK", str(path))
    file = held.start(data=b"", open=[str(path)])
    found = find.find(file.pid)
    assert not found.ranks
    assert [line for line in found.warnings if "it is not a regular file" in line]


def test_a_file_elsewhere_with_that_name_is_not_looked_at(held: Ranks, tmp_path: Path) -> None:
    path = tmp_path / f"memfd:{layout.FILE_NAME} (deleted)"
    path.write_bytes(made([], [MadeGroup(0, 1)]))
    file = held.start(data=b"", open=[str(path)])
    assert find.find(file.pid).ranks == ()


def test_thousands_of_descriptors(held: Ranks) -> None:
    file = held.start(more=3000, forks=True)
    begin = time.monotonic()
    assert len(find.find(file.pid).ranks) == 1
    assert time.monotonic() - begin < 5


def test_a_process_that_ends_while_it_is_looked_at(
    held: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = held.start()
    whole = processes.pids
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(processes, "pids", lambda: [gone.pid, *whole()])
    assert len(find.find(file.pid).ranks) == 1
    assert processes.look(gone.pid) is None and processes.uid_of(gone.pid) is None
    assert not find.find(gone.pid).ranks and not find.find(gone.pid).warnings

    link, ended = os.readlink, file.path

    def end(path: str) -> str:
        name = link(path)
        if path == ended:
            file.kill()
        return name

    monkeypatch.setattr(os, "readlink", end)
    assert find.find(file.pid).ranks == ()


def test_no_signal_and_nothing_written(held: Ranks) -> None:
    file = held.start()
    before = Path(file.path).read_bytes(), os.stat(file.path).st_mtime_ns
    find.find(file.pid)
    assert (Path(file.path).read_bytes(), os.stat(file.path).st_mtime_ns) == before
    assert file.process.poll() is None


@needs_root
def test_ranks_of_other_users(held: Ranks) -> None:
    file = held.start(user=NOBODY)
    mine = {rank.process.pid for rank in find.find().ranks if rank.process is not None}
    assert file.pid not in mine
    (rank,) = find.find(file.pid).ranks
    assert rank.process is not None and rank.process.uid == NOBODY
    everyone = find.find(all_users=True).ranks
    assert file.pid in {rank.process.pid for rank in everyone if rank.process is not None}


def _as_nobody(pid: int | None, all_users: bool, said: str, of: int) -> bool:
    def look() -> bool:
        os.setuid(NOBODY)
        lines = [w for w in find.find(pid, all_users).warnings if w.startswith(f"process {of} (")]
        return [said in line for line in lines] == ([True] if said else [])

    return in_a_child(look) == RIGHT


@needs_root
def test_a_process_that_may_not_be_looked_into(held: Ranks) -> None:
    file, ranklike = held.start(), held.start(thread="fc-progress")
    why = "it is of user 0: ask as that user, or with CAP_SYS_PTRACE"
    assert _as_nobody(file.pid, False, why, of=file.pid)
    assert _as_nobody(None, True, "", of=file.pid)  # nothing shows that it is a rank
    assert _as_nobody(None, True, why, of=ranklike.pid)
    assert _as_nobody(None, False, "", of=ranklike.pid)  # of another user, who was not asked for
    closed = held.start(thread="fc-progress", user=NOBODY)  # setuid() has made it not dumpable
    assert _as_nobody(None, False, "it is not dumpable, or has rights", of=closed.pid)

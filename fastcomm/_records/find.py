"""Find the records of ranks through /proc, without their help: they may hang, be stopped or dead.

A rank has its own file open, and those of its peers: so a rank's records can be read while any of
them lives. Children that a rank has forked have them open, too. Files are opened for reading only,
and never mapped, so that a file that shrinks costs an error; no signal is sent.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fastcomm._records import layout, processes
from fastcomm._records.processes import Process
from fastcomm._records.snapshot import Snapshot

_LINK = f"/memfd:{layout.FILE_NAME} (deleted)"  # of /proc/PID/fd/N


@dataclass(frozen=True)
class RankFile:
    """A process that has records, and what they held."""

    snapshot: Snapshot
    process: Process | None  # None: it has ended, or is not visible from here
    holders: tuple[int, ...]  # the processes that have the file open
    data: bytes = field(default=b"", repr=False)  # all of the file, if that was asked for


@dataclass(frozen=True)
class Found:
    """The ranks of one moment."""

    ranks: tuple[RankFile, ...]
    warnings: tuple[str, ...]  # a line for each file and process that could not be read
    time: int  # ns of CLOCK_MONOTONIC, before the first was read


def find(
    pid: int | None = None,
    all_users: bool = False,
    last: int | None = None,
    *,
    keep: bool = False,
) -> Found:
    """Find ranks and read their records. Raises OSError if there is no /proc.

    Args:
        pid: find the ranks of this process's job only: those it shares groups with, and those
            these share groups with, and so on. It may be a rank, a dead rank as it saw itself,
            a process that a rank has forked, or one that has started ranks, as torchrun does.
        all_users: look at processes of all users, not only at those of this one.
        last: how many of the newest calls are wanted (see `layout.read`); None: all.
        keep: keep what is in the files, too; then all calls are read.
    """
    now = time.monotonic_ns()
    warnings: list[tuple[set[int], str]] = []  # with the processes that it is about
    holders: dict[tuple[int, int], list[tuple[int, int]]] = {}  # pid and fd, by file
    for each in processes.pids():
        if not (all_users or pid is not None or processes.uid_of(each) == os.getuid()):
            continue
        try:
            for fd, file in _files(each):
                holders.setdefault(file, []).append((each, fd))
        except PermissionError:
            if each == pid or (pid is None and processes.has_ranks_threads(each)):
                warnings += [({each}, line) for line in _why_denied(each)]
    owners = _Owners()
    ranks = []
    for file, places in holders.items():
        pids = tuple(dict.fromkeys(each for each, _ in places))
        read, why = _read(file, places, last, keep)
        if read is not None:
            snapshot, data = read
            ranks.append(RankFile(snapshot, owners.of(snapshot, pids), pids, data))
        elif why:
            warnings.append((set(pids), why))
    if pid is not None:
        ranks = _job_of(pid, ranks)
        job = {pid}.union(*(rank.holders for rank in ranks))
        warnings = [(about, line) for about, line in warnings if about & job]
    return Found(tuple(ranks), tuple(line for _, line in warnings), now)


def _files(pid: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield which descriptors of a process are records, and of which file.

    Raises PermissionError if it may not be looked into. One that ends meanwhile has no more.
    """
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return
    for name in names:
        path = f"{folder}/{name}"
        try:
            if os.readlink(path) != _LINK:
                continue
            if not os.lstat(path).st_mode & stat.S_IWUSR:
                continue  # open for reading only: not a rank, but another that looks, as this does
            status = os.stat(path)
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(name), (status.st_dev, status.st_ino)


def _read(
    file: tuple[int, int], places: Sequence[tuple[int, int]], last: int | None, keep: bool
) -> tuple[tuple[Snapshot, bytes] | None, str]:
    """Read a file at one of the places where it is open; if none gives it, return why, too."""
    why = ""
    for pid, fd in places:
        try:
            return _read_at(f"/proc/{pid}/fd/{fd}", file, last, keep), ""
        except layout.RecordsError as error:  # what is in the file is the same everywhere
            return None, f"process {pid}: its records (descriptor {fd}) are not read: {error}"
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed meanwhile
        except OSError as error:
            why = f"process {pid}: its records (descriptor {fd}) cannot be opened: {error.strerror}"
    return None, why


def _read_at(
    path: str, file: tuple[int, int], last: int | None, keep: bool
) -> tuple[Snapshot, bytes]:
    # To open a device may do something, and a FIFO's writer may notice.
    status = os.stat(path)
    if (status.st_dev, status.st_ino) != file:
        raise FileNotFoundError(path)
    if not stat.S_ISREG(status.st_mode):
        raise layout.RecordsError("it is not a regular file")
    if status.st_size > layout.FILE_BYTES:
        raise layout.RecordsError(f"it has {status.st_size} bytes, not {layout.FILE_BYTES}")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not keep:
            return layout.read(fd, last), b""
        data = layout.copied(fd)
        return layout.parse(data), data
    finally:
        os.close(fd)


class _Owners:
    """The process that a file is of; knows each process that it has looked at."""

    def __init__(self) -> None:
        self._known: dict[int, Process | None] = {}
        self._all: list[int] | None = None

    def of(self, snapshot: Snapshot, holders: Iterable[int]) -> Process | None:
        """Return the process that has written the file, or None if it is not visible."""
        for process in map(self._look, holders):
            if process is not None and _owns(process, snapshot):
                return process
        if self._all is None:
            self._all = processes.pids()  # a zombie has no file open
        for process in map(self._look, self._all):
            if process is not None and _owns(process, snapshot):
                return process
        return None

    def _look(self, pid: int) -> Process | None:
        if pid not in self._known:
            self._known[pid] = processes.look(pid)
        return self._known[pid]


def _owns(process: Process, snapshot: Snapshot) -> bool:
    return (process.own_pid, process.start_time) == (snapshot.pid, snapshot.start_time)


def _job_of(pid: int, ranks: Sequence[RankFile]) -> list[RankFile]:
    """Return the ranks that a process shares groups with, directly or through others."""
    own = [rank for rank in ranks if rank.process is not None and rank.process.pid == pid]
    dead = [rank for rank in ranks if rank.process is None and rank.snapshot.pid == pid]
    held = [rank for rank in ranks if pid in rank.holders]
    job = list(own or held or dead)
    if not job:
        job = [r for r in ranks if r.process is not None and processes.descends(r.process, pid)]
    tokens = {group.token for rank in job for group in rank.snapshot.groups}
    left = [rank for rank in ranks if rank not in job]
    while more := [r for r in left if any(g.token in tokens for g in r.snapshot.groups)]:
        job += more
        tokens |= {group.token for rank in more for group in rank.snapshot.groups}
        left = [rank for rank in left if rank not in more]
    return job


def _why_denied(pid: int) -> list[str]:
    process = processes.look(pid)
    if process is None:
        return []
    who = f"process {pid} ({process.command[:80]}) may not be looked into"
    if process.uid != os.geteuid():
        return [f"{who}: it is of user {process.uid}: ask as that user, or with CAP_SYS_PTRACE"]
    return [
        f"{who}: it is not dumpable, or has rights that this process lacks: ask as root, or with "
        "CAP_SYS_PTRACE"
    ]

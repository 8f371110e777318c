"""Ranks of a job: whose records there are."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fastcomm._records import find
from fastcomm._records.snapshot import Call, Group, Snapshot


@dataclass(frozen=True)
class Rank:
    """A rank's records as they were at one moment."""

    number: int  # in the job
    pid: int  # as the reader's host numbers processes
    state: str  # what the process was doing, for people; "" if nobody looked
    read_at: int  # ns of CLOCK_MONOTONIC
    snapshot: Snapshot
    data: bytes = field(repr=False)  # what the snapshot was made from

    @property
    def now(self) -> int:
        """The moment up to which an open call has lasted, in ns; no call is later."""
        last = max((latest(call) for call in self.snapshot.calls), default=0)
        return max(self.read_at, last)


def latest(call: Call) -> int:
    """Return the latest time of a call, in ns."""
    return max(call.issued, call.started or 0, call.ended or 0)


def member(group: Group, rank: int | None) -> int | None:
    """Return the number in the job of a group's rank; None if the records do not list it."""
    if rank is None or not 0 <= rank < len(group.members):
        return None
    return group.members[rank]


def number_of(snapshot: Snapshot) -> int | None:
    """Return the rank's number in the job; None if it has no group that tells."""
    numbers = (member(group, group.rank) for group in snapshot.groups)
    return next((number for number in numbers if number is not None), None)


def ranks_of_job(pid: int) -> list[Rank]:
    """Return the ranks of a process's job whose records are here, by number.

    Raises:
        OSError: there is no /proc.
    """
    found: dict[int, Rank] = {}
    for file in find.find(pid, keep=True).ranks:
        number = number_of(file.snapshot)
        if number is None or (number in found and file.process is None):
            continue  # of two that say that they are one rank, the one that lives
        now = time.monotonic_ns()
        process = file.process
        state = "gone" if process is None else process.words
        own = file.snapshot.pid if process is None else process.pid
        found[number] = Rank(number, own, state, now, file.snapshot, file.data)
    return [found[number] for number in sorted(found)]

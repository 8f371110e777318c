"""Records of a process, as one reading found them.

The rate of the counter behind times is known better with every reading: those of one moment may
differ by some ns from one reading to the next.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """A process group as one of its ranks has written it down."""

    token: str  # the same on all ranks of the group, and of no other
    name: str
    description: str
    rank: int
    size: int
    members: tuple[int, ...]  # the ranks' numbers in the job; of a very large group the first ones
    opened: int  # ns of CLOCK_MONOTONIC, as all times here
    closed: int | None  # None: it is in use


@dataclass(frozen=True)
class Call:
    """One call of a rank. Times are in ns of CLOCK_MONOTONIC."""

    number: int  # rises in the order of the process's calls; some may be left out
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
    """The content of one file at one moment."""

    pid: int  # as the process itself sees it
    start_time: int  # field 22 of /proc/PID/stat
    to_date: int  # ns to add to a time for the date
    groups: tuple[Group, ...]
    calls: tuple[Call, ...]  # by number; entries written meanwhile are left out
    issued: int  # how many calls the process has issued
    dropped: int  # calls without a record: too many were open
    torn: int  # entries left out

"""Additions to ``torch.distributed``: records of the calls that ranks have made.

Records are on by default (``FASTCOMM_RECORDS``), and hold the latest calls of each process, of any
engine. From a shell, ``fastcomm top`` and ``fastcomm trace`` read the same.
"""

from __future__ import annotations

import os

from fastcomm import _native, errors
from fastcomm._records import layout
from fastcomm._records.ranks import Rank as Rank
from fastcomm._records.ranks import ranks_of_job
from fastcomm._records.snapshot import Call as Call
from fastcomm._records.snapshot import Group as Group

__all__ = ["Call", "Group", "Rank", "records", "records_of_job"]


def records() -> list[Call]:
    """Return the calls of this process, the oldest first: at least the last 4,096, and all open.

    A call has operation, dtype, elements, bytes, group, sequence, and times in ns of
    ``time.monotonic_ns()``: when it was issued, when all ranks were there, when it ended and how.
    Any thread may ask; it takes some 0.1 s, and no rank waits for it. No device is waited for: a
    call on a device ends when the host learns of it.

    Raises:
        UnsupportedError: nothing is recorded, for the reason in the text; or no group was formed.
    """
    native = _native.load()
    fd = native.records_fd()
    if fd is None:
        why = native.why_no_records() or "no process group has been formed in this process"
        raise errors.UnsupportedError(f"there are no records of calls: {why}")
    return list(layout.read(fd).calls)


def records_of_job(pid: int | None = None) -> list[Rank]:
    """Return the ranks on this host of a process's job, by number, with the calls of each.

    They need not answer: a rank may be stopped, or dead, if another one that shared memory with it
    lives.

    Args:
        pid: a process of the job; None: this one.

    Raises:
        OSError: there is no /proc.
    """
    return ranks_of_job(os.getpid() if pid is None else pid)

"""Additions to ``torch.distributed``: short calls, and records of the calls that ranks have made.

Short calls are collectives without torch's own layers.

Records are on by default (``FASTCOMM_RECORDS``), and hold the latest calls of each process, of any
engine. From a shell, ``fastcomm top`` and ``fastcomm trace`` read the same.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from fastcomm import _native, errors
from fastcomm._records import layout
from fastcomm._records.ranks import Rank as Rank
from fastcomm._records.ranks import ranks_of_job
from fastcomm._records.snapshot import Call as Call
from fastcomm._records.snapshot import Group as Group

if TYPE_CHECKING:
    from fastcomm._distributed.direct import all_gather_into as all_gather_into
    from fastcomm._distributed.direct import all_reduce_ as all_reduce_
    from fastcomm._distributed.direct import all_to_all_into as all_to_all_into
    from fastcomm._distributed.direct import barrier as barrier
    from fastcomm._distributed.direct import broadcast_ as broadcast_
    from fastcomm._distributed.direct import reduce_scatter_into as reduce_scatter_into

_COLLECTIVES = (
    *("all_gather_into", "all_reduce_", "all_to_all_into"),
    *("barrier", "broadcast_", "reduce_scatter_into"),
)

__all__ = ["Call", "Group", "Rank", "records", "records_of_job", *_COLLECTIVES]


if not TYPE_CHECKING:  # to which it would say that any name is there

    def __getattr__(name: str) -> object:
        """Load the native library when one of the collectives is first used (PEP 562)."""
        if name not in _COLLECTIVES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module("fastcomm._distributed.direct"), name)
        globals()[name] = value
        return value


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

"""Descriptors that groups need, and that this process may open."""

from __future__ import annotations

import errno
import os
import resource


def shortage(size: int) -> str:
    """Return an error text if a group of ``size`` ranks might run out of descriptors, else "".

    This is checked before the group forms: a thread of Gloo that gets no descriptor for a
    connection ends the whole process.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError as error:
        if error.errno != errno.EMFILE:
            return ""  # no /proc: the number is unknown
        used = limit
    # The first group takes records, a segment, a pidfd, a socket and an event, and a socket and
    # three descriptors per peer. If it ends up on Gloo, Gloo takes size + 3 of its own, and more
    # while it connects, and the links of csrc/transport/tcp at most size + 2, after that.
    needed = 4 * size + 16
    if limit - used >= needed:
        return ""
    return (
        f"a group of {size} ranks needs up to {needed} descriptors, and this process may open "
        f"{max(0, limit - used)} more: raise the limit of open files (ulimit -n), which is "
        f"{limit}, or destroy groups that are not used"
    )

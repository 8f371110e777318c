"""A child of fork(), and what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Callable

RIGHT = 7  # no other end of a process has this status


def in_a_child(body: Callable[[], object]) -> int:
    """Run ``body`` in a forked child and return its exit status: `RIGHT` if that is true."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = RIGHT if body() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

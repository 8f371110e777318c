"""How long tests wait for what must end: minutes, so that a slow and busy machine passes too.

A test that passes never waits that long. Whatever has an end of its own is given up in this order,
so that the innermost tells what it knows: an operation, its rank, the test (`timeout` in
pyproject.toml).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

OPERATION = 180.0  # seconds: the timeout of groups in which nobody should be too late
ENDS = 300.0  # seconds: processes, and states that must come
# What comes at once comes within this many seconds on any machine, and long before OPERATION. How
# fast it really is, benchmarks tell.
SOON = 60.0


def until(condition: Callable[[], object], what: str, pause: float = 0.01) -> None:
    """Wait until ``condition()`` holds.

    Raises:
        AssertionError: it did not come to hold; says ``what`` was awaited.
    """
    deadline = time.monotonic() + ENDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {ENDS:.0f} s: {what}"
        time.sleep(pause)


def has_ended(pid: int) -> bool:
    """Tell whether a process does not exist, or is a zombie that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

"""What fastcomm may leave in the system: files in /dev/shm. Sockets and memory have owners."""

from __future__ import annotations

import os
import time


def seen() -> set[str]:
    """All there is now with fastcomm's name, of whatever process."""
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "fastcomm" in name}


def left(before: set[str], patience: float = 5.0) -> list[str]:
    """What is there since ``before`` and stays. Other programs may form groups meanwhile."""
    deadline = time.monotonic() + patience
    found = seen() - before
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found &= seen()
    return sorted(found)

"""What fastcomm may leave in the system: files in /dev/shm. Sockets and memory have owners."""

from __future__ import annotations

import os
import time


def seen() -> set[str]:
    """Return all that now carries fastcomm's name, whichever process it belongs to."""
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "fastcomm" in name}


def left(before: set[str], patience: float = 60.0) -> list[str]:
    """Return what appeared since ``before`` and stays. Others may form groups meanwhile."""
    deadline = time.monotonic() + patience
    found = seen() - before
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found &= seen()
    return sorted(found)

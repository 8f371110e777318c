"""What fastcomm may leave in the system: files in /dev/shm, abstract sockets."""

from __future__ import annotations

import os
import time
from pathlib import Path


def seen() -> set[str]:
    """All there is now with fastcomm's name, of whatever process."""
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "fastcomm" in name}
    found |= {
        line.split()[-1]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if "fastcomm-" in line
    }
    return found


def left(before: set[str], patience: float = 5.0) -> list[str]:
    """What is there since ``before`` and stays. Other programs may form groups meanwhile."""
    deadline = time.monotonic() + patience
    found = seen() - before
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found &= seen()
    return sorted(found)

"""This process's shared memory as the kernel sees it: what fastcomm itself does not tell."""

from __future__ import annotations

import os
from pathlib import Path


def _file() -> Path:
    """Return the segment, by the one descriptor of this process that has it open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if "fastcomm" in _target(link)]
    (found,) = (link for link in links if "fastcomm-records" not in _target(link))
    return found


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # another thread, such as a store's, has closed it since
        return ""


def backed_bytes() -> int:
    """Return the bytes of memory that the segment occupies."""
    return _file().stat().st_blocks * 512


def holds(pattern: bytes) -> bool:
    """Tell whether the bytes are anywhere in the segment; holes are not read."""
    with _file().open("rb", buffering=0) as segment:
        end = 0
        while True:
            try:
                start = segment.seek(end, os.SEEK_DATA)
            except OSError:  # no data from here on
                return False
            end = segment.seek(start, os.SEEK_HOLE)
            if pattern in os.pread(segment.fileno(), end - start, start):
                return True

"""Releases of torch: the newest one that fastcomm is tested with, and whether another is newer.

requirements/torch-newest.txt is the only place that names it: `.ci/run` and the Makefile read it
too, and the build puts it down in ``fastcomm/_build_info.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

_FILE = Path(__file__).resolve().parent.parent / "requirements" / "torch-newest.txt"


def release(version: str) -> tuple[int, int]:
    """Return major and minor of a version, as of ``2.15.0+cpu`` or ``2.16.0a0+git1234``."""
    major, minor = version.split(".")[:2]
    return int(major), int(re.match(r"\d+", minor)[0])  # type: ignore[index]


def newest_known() -> str:
    """Return the newest version that fastcomm is tested with, as ``2.15.0``."""
    (version,) = re.findall(r"^torch==(\S+)$", _FILE.read_text(), re.MULTILINE)
    return str(version)


def is_newer(version: str, known: str) -> bool:
    """Tell whether major and minor of ``version`` are later than those of ``known``."""
    return release(version) > release(known)

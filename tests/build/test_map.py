"""csrc/README.md names every file of csrc, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

SOURCES = (".h", ".hpp", ".inc", ".cpp", ".cuh", ".cu")


def patterns(text: str) -> Iterator[str]:
    """Yield what the map names, below csrc: files, or patterns of files."""
    yield from re.findall(r"^\*\*`(.+[^/])`\*\*", text, re.MULTILINE)
    for folder, files in re.findall(r"^\*\*`(.+)/`\*\*.*\n((?:[- ] .*\n|\n)+)", text, re.MULTILINE):
        for line in re.findall(r"^- (.*?): ", files.replace("\n  ", " "), re.MULTILINE):
            yield from (f"{folder}/{name}" for name in re.findall(r"`([^`]+)`", line))


def test_the_map_is_of_the_files_that_are_there(root: Path) -> None:
    csrc = root / "csrc"
    files = [
        str(path.relative_to(csrc)) for path in sorted(csrc.rglob("*")) if path.suffix in SOURCES
    ]
    named = list(patterns((csrc / "README.md").read_text()))
    assert len(named) > 150
    assert not [file for file in files if not any(fnmatch(file, name) for name in named)]
    assert not [name for name in named if not any(fnmatch(file, name) for file in files)]

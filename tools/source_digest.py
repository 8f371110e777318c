"""A digest of sources: whether what was built or checked before matches what is here now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".cu", ".cuh", ".inc", ".toml", ".txt"}
BUILT = {"_build_info.py"}  # it says what it was compiled by


def files_below(places: Iterable[str], root: Path = ROOT) -> Iterator[Path]:
    """Yield the sources of files and folders of the repository, in order; git is not asked."""
    for place in places:
        path = root / place
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            hidden = any(part.startswith((".", "__")) for part in file.relative_to(root).parts[:-1])
            if file.suffix in SUFFIXES and file.name not in BUILT and not hidden and file.is_file():
                yield file


def digest(places: Iterable[str], *words: str, root: Path = ROOT) -> str:
    """Return 16 hexadecimal digits that depend on names, contents and ``words``."""
    total = hashlib.sha256()
    for file in files_below(places, root):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(root)} {content}\n".encode())
    total.update("\n".join(words).encode())
    return total.hexdigest()[:16]

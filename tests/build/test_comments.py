"""Comments and docstrings: noun first, lines of at most 100 columns."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100  # of .clang-format, which leaves comments alone; ruff sees to Python
CXX = (".h", ".cpp", ".cu")
_QUESTION = r"(What|Which|Where|How|Whether|Who) "


def _files(*folders: str) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if listed:
        yield from (ROOT / name for name in listed)
    else:  # a source distribution
        for folder in folders:
            yield from (ROOT / folder).rglob("*.*")


def _matching(pattern: str, files: Iterator[Path], suffixes: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path.suffix in suffixes
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_comments_of_csrc_start_with_their_noun() -> None:
    found = _matching(rf"^ *///? *{_QUESTION}", _files("csrc"), CXX)
    assert len(found) <= 40, "\n".join(found)


def test_docstrings_start_with_their_noun() -> None:
    found = _matching(rf'^ *"""{_QUESTION}', _files("fastcomm"), (".py",))
    assert len(found) <= 20, "\n".join(found)


def test_lines_have_100_columns() -> None:
    long = _matching(rf"^.{{{COLUMNS + 1},}}", _files("csrc", "tests", "benchmarks"), CXX)
    assert long == []


def test_what_is_looked_for_is_found() -> None:
    path = ROOT / "csrc" / "core" / "env.h"
    assert _matching("Every FASTCOMM_", iter([path]), CXX)
    assert re.search(rf"^ *///? *{_QUESTION}", "  /// How many bytes there are.")

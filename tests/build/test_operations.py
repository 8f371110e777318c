"""An operation is a row: few files know one by its name.

Its number (``core/types.h``), its row (``coll/operations.cpp``), the method of c10d that makes a
request of it, and the form that makes calls of the request. Those that operators and prepared calls
have are known there, too (``edge/direct_call.cpp``, ``edge/library.cpp``, ``requests/plain.cpp``).
Everything else that depends on a call's operation reads the row, but for an engine that takes some
forms only.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

SOURCES = {".h", ".cpp", ".cu", ".inc"}
NOT_CALLED = {"kNone", "kOther"}


def kinds(csrc: Path) -> list[str]:
    """Return the names of all operations, as in the enumeration."""
    enumeration = re.search(
        r"enum class OpKind[^{]*\{(.*?)\};", (csrc / "core/types.h").read_text(), re.DOTALL
    )
    assert enumeration is not None
    return re.findall(r"\b(k[A-Z]\w*) = \d+", enumeration.group(1))


def files_that_know(csrc: Path, kind: str) -> list[str]:
    """Return the sources that name an operation."""
    name = re.compile(rf"\bOpKind::{kind}\b")
    return sorted(
        str(path.relative_to(csrc))
        for path in csrc.rglob("*")
        if path.suffix in SOURCES and name.search(path.read_text())
    )


def test_an_operation_is_known_by_its_row_and_its_method(root: Path) -> None:
    csrc = root / "csrc"
    found = {kind: files_that_know(csrc, kind) for kind in kinds(csrc) if kind not in NOT_CALLED}
    assert len(found) > 20
    for kind, files in found.items():
        assert "coll/operations.cpp" in files, kind
        others = [name for name in files if name != "coll/operations.cpp"]
        allowed = {"c10d/edge": 3, "c10d/requests": 3, "c10d/engines/native": 1}
        allowed |= {"c10d/engines/cuda": 1, "c10d/engines/delegate": 1, "c10d/engines/hosts": 1}
        for room, count in Counter(str(Path(name).parent) for name in others).items():
            assert count <= allowed.get(room, 0), f"{kind} is known to {others}"


@pytest.mark.parametrize("code", ["x = OpKind::kOne;", "// OpKind::kOne"])
def test_one_that_spreads_is_reported(tmp_path: Path, code: str) -> None:
    (tmp_path / "coll").mkdir()
    (tmp_path / "coll/new.cpp").write_text(code)
    (tmp_path / "coll/old.cpp").write_text("OpKind::kOneMore")
    assert files_that_know(tmp_path, "kOne") == ["coll/new.cpp"]

"""What decides whether programs compiled elsewhere can be used here; digests of sources."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gpu_programs
import pytest
import source_digest


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """Return a folder of programs for two architectures; one that is started records how."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    (folder / gpu_programs.RECORD).write_text(json.dumps(gpu_programs.record_for("8.0;9.0")))
    _write(folder, 'test "$1" = refused')
    return folder


def _write(folder: Path, text: str) -> None:
    program = folder / gpu_programs.NEEDS_NO_DEVICE[0]
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_what_fits_serves(carried: Path) -> None:
    assert gpu_programs.why_not("9.0", carried) is None
    programs = gpu_programs.ensure("8.0", carried)
    assert programs["multi_copy"] == carried / "multi_copy"
    assert programs.keys() == {*gpu_programs.TESTS, gpu_programs.BENCHMARK}


def test_what_does_not_fit_says_why(carried: Path, tmp_path: Path) -> None:
    assert "have not been compiled" in str(gpu_programs.why_not("9.0", tmp_path / "empty"))
    assert "for 8.0;9.0, not for 12.0" in str(gpu_programs.why_not("12.0", carried))
    _write(carried, "echo 'version `GLIBC_2.99 not found' >&2; exit 1")
    assert "do not start here: version `GLIBC_2.99" in str(gpu_programs.why_not("9.0", carried))
    (carried / gpu_programs.NEEDS_NO_DEVICE[0]).unlink()
    assert "do not start here" in str(gpu_programs.why_not("9.0", carried))
    record = {**gpu_programs.record_for("9.0"), "sources": "others"}
    (carried / gpu_programs.RECORD).write_text(json.dumps(record))
    assert "sources have changed" in str(gpu_programs.why_not("9.0", carried))


def test_there_is_a_source_of_every_program() -> None:
    for name in (*gpu_programs.TESTS, gpu_programs.BENCHMARK):
        assert (gpu_programs.ROOT / gpu_programs.source_of(name)).is_file()
    sources = (gpu_programs.ROOT / "tests/cpp").glob("shim_*_test.cpp")
    # Not those about the shim itself, that map the shim's memory between processes, or whose ranks
    # are threads.
    here = {path.name for path in sources if "ipc_world.h" not in path.read_text()}
    here -= {"shim_order_test.cpp", "shim_peer_threads_test.cpp"}
    assert here == {Path(gpu_programs.source_of(name)).name for name in gpu_programs.TESTS}


@pytest.mark.parametrize(
    ("name", "content", "changes"),
    [
        ("csrc/a.h", "int a;", True),
        ("csrc/deep/c.cu", "new", True),
        ("csrc/_build_info.py", "built", False),
        ("csrc/__pycache__/a.py", "cached", False),
        ("csrc/a.so", "built", False),
        ("docs/b.py", "elsewhere", False),
        ("one.py", "print()", True),
    ],
)
def test_a_digest_is_of_sources(tmp_path: Path, name: str, content: str, changes: bool) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.h").write_text("int b;")
    (tmp_path / "one.py").write_text("")
    places = ("csrc", "one.py", "not there")
    before = source_digest.digest(places, "9.0", root=tmp_path)
    assert re.fullmatch(r"[0-9a-f]{16}", before)
    assert before != source_digest.digest(places, "8.0", root=tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
    assert (before != source_digest.digest(places, "9.0", root=tmp_path)) == changes

"""tools/release_check.py finds Pythons; tools/copy_tree.py copies sources and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import copy_tree
import pytest
import release_check


def test_a_python_that_does_not_start_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stand_in = tmp_path / "bin" / f"python{version}"
    good = tmp_path / "pyenv" / "versions" / f"{version}.9" / "bin" / f"python{version}"
    for path, text in ((stand_in, "exit 127"), (good, f'exec {sys.executable} "$@"')):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert release_check.find_python(version) == str(good)
    assert release_check.find_python("3.99") is None


def test_a_copy_follows_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, target = tmp_path / "root", tmp_path / "target"
    (root / "pkg").mkdir(parents=True)
    for name in ("pkg/a.py", "pkg/b.py", "ignored.log"):
        (root / name).write_text(name)
    (root / ".gitignore").write_text("*.log\n*.so\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    monkeypatch.setattr(copy_tree, "ROOT", root)
    copy_tree.copy(target)
    assert not (target / "ignored.log").exists()
    first = (target / "pkg" / "a.py").stat().st_mtime_ns
    assert first == (root / "pkg" / "a.py").stat().st_mtime_ns
    (target / "pkg" / "_C.so").write_text("built there")
    (target / "build").mkdir()
    (target / "build" / "a.o").write_text("built there")
    (root / "pkg" / "b.py").unlink()
    copy_tree.copy(target)
    there = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert there == {".gitignore", "pkg/a.py", "pkg/_C.so", "build/a.o"}


@pytest.mark.parametrize("missing", ["nvcc", "python"])
def test_without_nvcc_or_python_the_cuda_flavour_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    monkeypatch.setattr(release_check, "CUDA_PAIR", ("3.99", "torch==2.11.0"))
    home = None if missing == "nvcc" else "/somewhere"
    monkeypatch.setattr("cuda_toolkit.find_cuda_home", lambda: home)
    assert release_check.check_cuda()["status"] == 1
    assert f"there is no {missing}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statuses", "skipped", "status", "ran"),
    [([0, 0, 0], 0, 0, 3), ([0, 0, 0], 2, 1, 3), ([2], 0, 2, 1), ([0, 1], 0, 1, 2)],
)
def test_an_example_that_is_skipped_is_no_success(
    monkeypatch: pytest.MonkeyPatch, statuses: list[int], skipped: int, status: int, ran: int
) -> None:
    commands = []

    def run(name: str, command: list[str], *_: object, **__: str) -> dict[str, object]:
        commands.append(command)
        tests = {"passed": 9, "skipped": skipped} if "pytest" in command else {}
        return {
            "name": name,
            "status": statuses[len(commands) - 1],
            "seconds": 1,
            "tests": tests,
        }

    monkeypatch.setattr(release_check, "run", run)
    monkeypatch.setattr(copy_tree, "copy", lambda target: None)
    done = release_check.check_frameworks()
    assert (done["status"], len(commands), done["seconds"]) == (status, ran, ran)


def test_frameworks_are_pinned(root: Path) -> None:
    lines = release_check.FRAMEWORKS.read_text().splitlines()
    pinned = [line.partition("==")[0] for line in lines if not line.startswith("#")]
    names = [name.partition("[")[0] for name in pinned]  # without extras
    assert names == ["lightning", "deepspeed", "ray"]
    pages = {path.stem for path in (root / "docs" / "frameworks").glob("*.md")}
    assert set(names) <= pages

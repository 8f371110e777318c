"""tools/build_host.py and setup.py: what a build needs, and the line that ends it without."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import build_host
import pytest

import fastcomm

GIB = float(2**30)


def compiler(place: Path, text: str) -> str:
    """Return the path of a compiler that only says what its macros are."""
    path = place / "g++"
    path.write_text(f"#!/bin/sh\nprintf '{text}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("macros", "message"),
    [
        ("#define __GNUC__ 7\\n", "is GCC 7, and torch's headers need GCC 10 or later"),
        ("#define __GNUC__ 10\\n", None),
        ("#define __GNUC__ 4\\n#define __clang__ 1\\n", None),  # it says so for old programs
        (None, r"there is no C\+\+ compiler"),
    ],
)
def test_compilers(
    macros: str | None, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = compiler(tmp_path, macros) if macros else str(tmp_path / "none")
    monkeypatch.setenv("CXX", there)
    if message is None:
        build_host.check_compiler()
        return
    with pytest.raises(SystemExit, match=message) as raised:
        build_host.check_compiler()
    assert "wheel" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("free", "jobs"), [(1.0, "1"), (3.5, "2"), (1000.0, "4")])
def test_as_many_compilers_as_memory_has_room_for(
    free: float, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_host, "memory", lambda: free * GIB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setenv("MAX_JOBS", "1")  # which also undoes what limit_jobs() sets
    monkeypatch.delenv("MAX_JOBS")
    build_host.limit_jobs()
    assert os.environ["MAX_JOBS"] == jobs
    monkeypatch.setenv("MAX_JOBS", "7")
    build_host.limit_jobs()
    assert os.environ["MAX_JOBS"] == "7"  # told


def test_memory_is_what_this_process_may_have() -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))"
    code = f"import sys; sys.path.insert(0, 'tools'); import build_host; {limited}"
    command = [sys.executable, "-c", f"{code}; print(build_host.memory())"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert 0 < float(done.stdout) <= GIB < build_host.memory()


@pytest.mark.parametrize(
    ("free", "jobs", "says"),
    [
        (64.0, "2", "the compilation failed, see above (so it is)"),
        (1.0, "2", "for want of memory: 2 compilers at once take up to 3.2 GiB, and 1.0 GiB are"),
        (1.0, "2", "Set MAX_JOBS=1, or install a wheel"),
        (1.0, "1", "Add memory or swap, or install a wheel"),
    ],
)
def test_a_failure(free: float, jobs: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_host, "memory", lambda: free * GIB)
    monkeypatch.setenv("MAX_JOBS", jobs)
    assert says in build_host.failure("so it is")


def test_torch_is_found_behind_build_isolation(root: Path, tmp_path: Path) -> None:
    """pip hides the environment's packages, and offers what pyproject.toml asks for."""
    installed = Path(sysconfig.get_path("purelib"))
    for name in ("setuptools", "_distutils_hack", "pkg_resources"):
        if (installed / name).exists():
            (tmp_path / name).symlink_to(installed / name)
    hide = f"import sys; sys.path[:] = [path for path in sys.path if path != {str(installed)!r}]"
    (tmp_path / "sitecustomize.py").write_text(hide)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FASTCOMM_CUDA": "0"}
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == fastcomm.__version__

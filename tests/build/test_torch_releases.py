"""Newer releases of torch than the newest tested one: a message at build, a warning at load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch_releases as releases

# Changes nothing but the version that torch reports.
PRETEND = "import torch\ntorch.__version__ = {version!r}\n"
BUILD = """
import runpy, sys
from pathlib import Path
sys.argv = ["setup.py", "--version"]
record = runpy.run_path("setup.py")["build_info"]("0.1.0")
Path({record!r}).write_text(record)
"""
LOAD_TWICE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from fastcomm import _native
    _native.load()
    _native.load()
told = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
print(*(text for text in told if "fastcomm" in text), sep="\\n", end="")
"""


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.15.0", (2, 15)),
        ("2.15.9+cu130", (2, 15)),
        ("2.9.1", (2, 9)),
        ("1.99.0", (1, 99)),
        ("2.16rc1", (2, 16)),
        ("2.16.0a0+git1234", (2, 16)),
        ("2.16.0.dev20260101", (2, 16)),
        ("2.100.0", (2, 100)),
        ("3.0", (3, 0)),
    ],
)
def test_a_release_is_major_and_minor_which_are_compared_as_numbers(
    version: Any, release: Any
) -> None:
    assert releases.release(version) == release
    assert releases.is_newer(version, "2.15.0") is (release > (2, 15))


def test_the_newest_known_torch_is_the_one_that_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = releases.newest_known()
    assert releases.release(known) >= (2, 11)
    assert not releases.is_newer(known, known)
    required = tmp_path / "torch-newest.txt"
    required.write_text("# Why torch==1.0 is not it.\ntorch==7.8.9\n")
    monkeypatch.setattr(releases, "_FILE", required)
    assert releases.newest_known() == "7.8.9"


def build(root: Path, version: str, record: Path) -> list[str]:
    """Write the record of a build with this version; return the lines of output about torch."""
    code = PRETEND.format(version=version) + BUILD.format(record=str(record))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"FASTCOMM_CUDA": "0"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if "torch" in line]


@pytest.mark.parametrize("newer", [True, False])
def test_a_newer_torch_is_told_once_at_build_and_warned_of_once_at_load(
    root: Path, package_copy: Path, run_python: Any, newer: Any
) -> None:
    known = releases.newest_known()
    version = f"{releases.release(known)[0] + 1}.0.0+cpu" if newer else known
    told = [
        f"fastcomm: torch {version} is newer than any that fastcomm has been tested with "
        f"(up to {known}); trying"
    ]
    warned = [
        f"fastcomm has been tested with torch up to {known}; this is {version}. "
        "If something is wrong, try that one"
    ]
    record = package_copy / "fastcomm" / "_build_info.py"
    assert build(root, version, record) == (told if newer else [])
    (library,) = (root / "fastcomm").glob("_C*.so")
    (package_copy / "fastcomm" / library.name).symlink_to(library)
    done = run_python(PRETEND.format(version=version) + LOAD_TWICE, path=package_copy)
    assert done.stdout.splitlines() == (warned if newer else []), done.stderr
    assert done.returncode == 0, done.stderr

"""The tests of one process with several devices, on simulated ones: a file a time, in a process of
its own, since torch forgets no device type.

A GPU runs the same tests by ``pytest -m accelerator``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("simulated")

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"\bplace: (places\.)?Place\b|mark\.accelerator\b")


def files() -> list[str]:
    """Return the files that have tests for accelerators."""
    tests = ROOT / "tests"
    found = [*(tests / "package").glob("test_*.py"), *(tests / "gpu").glob("test_*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found if PLACE.search(path.read_text()))


def test_there_are_files() -> None:
    assert len(files()) > 10  # none would be a parametrised test that runs nothing


@pytest.mark.parametrize("file", files())
def test_file(file: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--accelerator",
        "sim",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "no:xdist", "--timeout=120", "--durations=5", file]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    print(result.stdout[-20_000:], result.stderr[-4_000:])
    assert result.returncode == 0, f"{file} fails on simulated devices"
    assert re.search(r"\d+ passed", result.stdout)

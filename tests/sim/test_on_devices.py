"""Tests of one process with several devices, run on simulated devices in a separate pytest.

torch cannot unregister a device type. On a GPU ``pytest -m accelerator`` runs the same tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

# The first test waits for the run of all files.
pytestmark = [pytest.mark.usefixtures("simulated"), pytest.mark.timeout(4000)]

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"\bplace: (places\.)?Place\b|mark\.accelerator\b")


def files() -> list[str]:
    """Return the files that have tests for accelerators."""
    tests = ROOT / "tests"
    found = [*(tests / "package").rglob("test_*.py"), *(tests / "gpu").glob("test_*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found if PLACE.search(path.read_text()))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    return run(tmp_path_factory.mktemp("devices"))


def run(folder: Path, *words: str) -> dict[str, Counter[str]]:
    """Run all `files`, and count by file how their tests ended."""
    results = folder / "results.xml"
    command = [sys.executable, "-m", "pytest", "--accelerator", "sim", "-q", "--durations=15"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    result = subprocess.run(
        [*command, f"--junitxml={results}", *words, *files()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    print(result.stdout[-40_000:], result.stderr[-4_000:])
    assert results.exists(), f"pytest ended with {result.returncode}, see above"
    found: dict[str, Counter[str]] = {file: Counter() for file in files()}
    for case in ElementTree.parse(results).iter("testcase"):
        ends = {child.tag for child in case} & {"failure", "error", "skipped"}
        place = case.get("classname", "").replace(".", "/") + ".py"
        found[place][ends.pop() if ends else "passed"] += 1
    return found


def test_there_are_files() -> None:
    assert len(files()) > 10  # with none, `test_file` would run nothing


@pytest.mark.parametrize("file", files())
def test_file(file: str, outcomes: dict[str, Counter[str]]) -> None:
    ended = outcomes[file]
    assert ended["failure"] + ended["error"] == 0, f"{file} fails on simulated devices: {ended}"
    assert ended["passed"] > 0, f"{file}: {ended}"


@pytest.mark.release
def test_what_is_left_for_releases(tmp_path: Path) -> None:
    ended = sum(run(tmp_path, "--release").values(), Counter())
    assert ended["failure"] + ended["error"] == 0 < ended["passed"], ended

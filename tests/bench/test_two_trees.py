"""Comparison of two source trees' libraries by benchmarks/two_trees.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_BENCH = ["--", "--ops", "broadcast,barrier", "--sizes", "8", "--ranks", "2", "--budget", "1"]


@pytest.mark.parametrize(
    "bench",
    [
        pytest.param([], id="short calls"),
        pytest.param(_BENCH, id="bench", marks=pytest.mark.release),
    ],
)
def test_a_tree_against_itself(bench: list[str], tmp_path: Path) -> None:
    record = tmp_path / "turns.json"
    command = [sys.executable, str(_ROOT / "benchmarks/two_trees.py")]
    command += [str(_ROOT), f"{_ROOT},FASTCOMM_RECORDS=off"]
    options = ["--turns", "1", "--calls", "10", "--json", str(record)]
    done = subprocess.run([*command, *options, *bench], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("broadcast, 8 B"))
    _, first, ratio = re.split(" {2,}", row)
    assert float(first) > 0 and float(ratio.split(" (")[0]) > 0
    assert record.read_text().count("broadcast, 8 B") == 2  # once per tree


def test_a_tree_that_is_not_built(tmp_path: Path) -> None:
    command = [sys.executable, str(_ROOT / "benchmarks/two_trees.py"), str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, cwd=tmp_path)
    # Without this error the installed library would be measured.
    assert done.returncode == 2 and "no library is built in place" in done.stderr, done.stderr

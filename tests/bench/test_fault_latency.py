"""Times from a rank's death to its peers' exceptions, measured by benchmarks/fault_latency.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fault_latency
import pytest
from support.patience import ENDS

pytestmark = pytest.mark.serial  # measures times

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_tells_the_slowest_survivor() -> None:
    kill = fault_latency.Kill(0, 3, 1, "between operations", "sync", 0.0)
    times = [fault_latency.Times(killed=0, exited=1000, told=[3000, 9000])]
    row = fault_latency.row_of(kill, times, seed=1)
    assert row["worst_from_exit_us"] == 8.0
    assert row["from_kill"]["median_us"] == 9.0


def test_every_kill_is_measured(tmp_path: Path) -> None:
    from fastcomm.bench.records import read_records

    out = tmp_path / "rows.jsonl"
    options = ["--ranks", "3", "--kills", "2", "--resident-gb", "0.01", "--json", str(out)]
    program = str(ROOT / "benchmarks" / "fault_latency.py")
    done = subprocess.run(
        [sys.executable, program, *options], capture_output=True, text=True, timeout=ENDS
    )
    # Exit status 1: the times exceed the limits of the benchmark, which are not tested here.
    assert done.returncode in (0, 1), done.stderr
    rows = read_records(out).rows
    # Two moments of death by two ways to call, and one size of held memory.
    assert [row["kills"] for row in rows] == [2] * 5
    for row in rows:
        assert 0 < row["from_exit"]["min_us"] < row["from_kill"]["min_us"]

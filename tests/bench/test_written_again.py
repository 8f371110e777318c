"""benchmarks/written_again.py measures every operation in both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import ENDS
from support.script import ROOT

OPERATIONS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "scatter")


def test_every_operation_has_a_row(tmp_path: Path) -> None:
    record = tmp_path / "rows.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "written_again.py"), "--json", str(record)]
    command += ["--sizes", "64KiB", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in record.read_text().splitlines()][1:]
    assert [row["op"] for row in rows] == list(OPERATIONS)
    for row in rows:
        assert row["bytes"] == 65536 and row["ranks"] == 2
        assert min(value for name, value in row.items() if name.endswith("_us")) > 0
        assert row["written_ratio"] == pytest.approx(
            row["in_place_written_us"] / row["slots_written_us"], abs=0.01
        )
        assert row["op"] in done.stdout

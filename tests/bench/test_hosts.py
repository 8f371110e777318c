"""Hosts beside each other on one machine, by benchmarks/hosts.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.namespaces import why_no_switch
from support.patience import ENDS

_SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/hosts.py"

pytestmark = pytest.mark.serial  # network namespaces


def test_rows_and_the_table_of_records(tmp_path: Path) -> None:
    if (reason := why_no_switch()) is not None:
        pytest.skip(reason)
    records = tmp_path / "hosts.jsonl"
    what = ["--shapes", "2x2", "--rates", "0", "--ops", "all_reduce,barrier", "--sizes", "8"]
    command = [sys.executable, str(_SCRIPT)]
    ran = subprocess.run(
        [*command, *what, "--json", str(records)], text=True, capture_output=True, timeout=ENDS
    )
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in records.read_text().splitlines()[1:]]
    assert [(row["op"], row["bytes"]) for row in rows] == [("all_reduce", 8), ("barrier", 0)]
    assert all(row["fastcomm_ms"] > 0 and row["gloo_ms"] > 0 for row in rows)
    shown = subprocess.run(
        [*command, "--show", str(records)], text=True, capture_output=True, timeout=ENDS
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == ran.stdout and "2 x 2" in shown.stdout

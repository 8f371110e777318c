"""The benchmark of the fused tail: every side is measured, docs/performance.md has its figures."""

from __future__ import annotations

import json
from pathlib import Path

import add_rms_norm
import pytest


def test_every_side_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "rows.jsonl"
    words = ["--hidden", "64", "--calls", "20", "--json", str(records)]
    assert add_rms_norm.main(words) == 0
    row = json.loads(records.read_text().splitlines()[1])
    assert (row["hidden"], row["ranks"]) == (64, 2)
    assert len(row["median_us"]) == 6 and all(us > 0 for us in row["median_us"].values())
    assert "hidden    64: sum " in capsys.readouterr().out

"""The record of the advisor's errors, and what is made of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import advise
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "results" / "advise.jsonl"


def _row(error: float, spread: float, times: float, measured: float) -> dict[str, Any]:
    return {
        "type": "row",
        "model": "MLP",
        "batch": 8,
        "way": "DDP",
        "devices": 2,
        "rows": 16,
        "seconds": 0.01 * (1 + error),
        "measured": 0.01,
        "error": error,
        "spread": spread,
        "times": times,
        "measured_times": measured,
    }


def test_a_summary_counts() -> None:
    rows = [
        {"type": "environment"},
        _row(0.02, 0.01, 1.2, 1.3),
        _row(-0.2, 0.01, 1.2, 0.8),  # steady, far off, and wrong
        _row(0.3, 0.5, 0.7, 0.6),  # far off where repeats are, too
        _row(0.0, 0.2, 1.05, 0.95),  # about as fast
        {"type": "advice", "sentence": ""},
    ]
    assert [count for _, count in advise.summary(rows)] == ["2 of 4", "1 of 2", "2 of 3"]
    assert " +2% |" in advise.tables(rows, "github", everything=True)
    assert "+0% (0.95) |" in advise.tables(rows, "github", everything=False)


def test_the_committed_record() -> None:
    rows = [json.loads(line) for line in RECORD.read_text().splitlines()]
    several = [row for row in rows if row["type"] == "row" and row["devices"] > 1]
    assert {(row["model"], row["batch"]) for row in several} == {
        (kind, batch) for kind in advise.KINDS for batch in advise.BATCHES
    }
    assert {row["way"] for row in several} >= {"DDP", "DataParallel"}
    for row in several:
        assert row["error"] == pytest.approx(row["seconds"] / row["measured"] - 1)
    counts = [tuple(map(int, text.split(" of "))) for _, text in advise.summary(rows)]
    assert all(near >= 0.9 * all_of_them >= 9 for near, all_of_them in counts)
    evidence = (ROOT / "docs" / "verification" / "tools.md").read_text()
    told = "{} of {}, {} of {} where repeats differ by less than 5 %, and {} of {} answers"
    assert told.format(*itertools.chain(*counts)) in evidence


@pytest.mark.parametrize("kind", advise.KINDS)
def test_models(kind: str) -> None:
    model, batch, classes = advise.model_of(kind)
    with torch.no_grad():
        assert model(batch(3)).shape == (3, classes)


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "advise.png"
    assert advise.main(["--show", str(RECORD), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")

from __future__ import annotations

from typing import Any

from fastcomm.bench.line_up import label_backends
from fastcomm.bench.sweep import SweepOptions, run_sweep


def test_repeated_backends_are_numbered() -> None:
    assert label_backends(("fastcomm", "gloo")) == ["fastcomm", "gloo"]
    assert label_backends(("gloo", "gloo", "gloo")) == ["gloo", "gloo-2", "gloo-3"]


def test_what_does_nothing_is_measured_and_not_compared() -> None:
    rows: list[dict[str, Any]] = []
    run_sweep(SweepOptions(("all_reduce",), (64,), ("gloo", "fake"), budget_s=0.5), rows.append)
    assert [row["backend"] for row in rows] == ["gloo", "fake"]
    assert rows[1]["min_us"] < rows[0]["min_us"]  # the median is the scheduler's on a busy machine

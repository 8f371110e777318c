from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastcomm._measure.line_up import label_backends


def test_repeated_backends_are_numbered() -> None:
    assert label_backends(("fastcomm", "gloo")) == ["fastcomm", "gloo"]
    assert label_backends(("gloo", "gloo", "gloo")) == ["gloo", "gloo-2", "gloo-3"]


def test_what_does_nothing_is_measured_and_not_compared(
    sweep: Callable[..., list[dict[str, Any]]],
) -> None:
    rows = sweep(("all_reduce",), (64,), ("gloo", "fake"), budget_s=0.5)
    assert [row["backend"] for row in rows] == ["gloo", "fake"]
    assert rows[1]["min_us"] < rows[0]["min_us"]  # the median is the scheduler's on a busy machine

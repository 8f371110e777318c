"""How loss curves are compared, against values worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest
from support import script

from fastcomm.bench.records import Records


@pytest.fixture(scope="module")
def loss_curves() -> ModuleType:
    return script.load("loss_curves")


def test_a_moving_mean(loss_curves: ModuleType) -> None:
    assert loss_curves.smoothed([4.0, 2.0, 6.0, 1.0], 2) == [3.0, 4.0, 3.5]
    assert loss_curves.smoothed([4.0, 2.0], 20) == [3.0]
    with pytest.raises(ValueError, match="no losses"):
        loss_curves.smoothed([])


def test_the_largest_and_the_last_difference(loss_curves: ModuleType) -> None:
    reference = [4.0, 4.0, 2.0, 2.0]
    found = loss_curves.deviation([4.0, 5.0, 2.0, 1.9], reference, 2)
    assert (found.largest, found.at_step) == (0.5 / 3, 3)  # of 4, 3 and 2: 0.5, 0.5, 0.05
    assert found.final == pytest.approx(0.025, rel=1e-12)
    below = loss_curves.deviation([2.0, 4.0, 2.0, 2.0], reference, 2)
    assert (below.largest, below.at_step, below.final) == (0.25, 2, 0.0)


def test_a_loss_that_is_no_number_is_no_small_difference(loss_curves: ModuleType) -> None:
    found = loss_curves.deviation([1.0, math.nan, 1.0, 1.0], [1.0] * 4, 2)
    assert (found.largest, found.at_step, found.final) == (math.inf, 2, 0.0)


def test_curves_of_different_lengths_are_not_compared(loss_curves: ModuleType) -> None:
    with pytest.raises(ValueError):
        loss_curves.deviation([1.0] * 5, [1.0] * 4, 2)


def test_a_png_is_written(loss_curves: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {"variant": name, "ranks": 2, "losses": [factor * (5 - step / 10) for step in range(30)]}
        for name, factor in (("fp32", 1.0), ("bf16 wire", 1.001))
    ]
    failed = {"variant": "other", "ranks": 2, "error": "planted"}
    path = tmp_path / "new" / "curves.png"
    loss_curves.write_plot(Records({}, [*rows, failed]), "fp32", path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000

"""benchmarks/schedule_cost.py compiles, and both variants get the right sums."""

from __future__ import annotations

from types import ModuleType

import pytest
from support import script


@pytest.fixture(scope="module")
def schedule_cost() -> ModuleType:
    return script.load("schedule_cost")


@pytest.mark.parametrize(("schedule", "nbytes"), [("one-shot", 8), ("two-shot", 1 << 20)])
def test_both_variants_are_right(schedule_cost: ModuleType, schedule: str, nbytes: int) -> None:
    case = schedule_cost.Case(schedule, nbytes, samples=20, batch=2)
    times = schedule_cost.measure(schedule_cost.build(), case, schedule_cost.BLOCK_BYTES)
    assert {name: len(samples) for name, samples in times.items()} == {
        "template": 20,
        "by-hand": 20,
    }
    assert all(time > 0 for samples in times.values() for time in samples)

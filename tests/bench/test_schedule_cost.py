"""benchmarks/schedule_cost.py compiles, and both variants get the right sums."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def schedule_cost() -> ModuleType:
    path = ROOT / "benchmarks" / "schedule_cost.py"
    spec = importlib.util.spec_from_file_location("schedule_cost", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["schedule_cost"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("schedule", "nbytes"), [("one-shot", 8), ("two-shot", 1 << 20)])
def test_both_variants_are_right(schedule_cost: ModuleType, schedule: str, nbytes: int) -> None:
    case = schedule_cost.Case(schedule, nbytes, samples=20, batch=2)
    times = schedule_cost.measure(schedule_cost.build(), case, schedule_cost.BLOCK_BYTES)
    assert {name: len(samples) for name, samples in times.items()} == {
        "template": 20,
        "by-hand": 20,
    }
    assert all(time > 0 for samples in times.values() for time in samples)

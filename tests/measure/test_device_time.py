"""Times of benchmarks on a device: which columns the samples yield; the CPU is a device, too."""

from __future__ import annotations

import time

import pytest
import torch
from support import gpu

from fastcomm._measure import device_time


def test_columns_are_medians_and_the_middle_half() -> None:
    times = [9.0, 1.0, 2.0, 4.0, 3.0]
    samples = {"ours": [device_time.Sample(ms, ms / 10) for ms in times]}
    found = device_time.columns(samples)
    assert found == {
        "median_ms": {"ours": 3.0},
        "host_ms": {"ours": 0.3},
        "spread": {"ours": round((4.0 - 2.0) / 3.0, 3)},
    }


def test_one_sample_has_no_spread() -> None:
    assert device_time.columns({"a": [device_time.Sample(2.0, 1.0)]})["spread"] == {"a": 0.0}


def test_sides_take_turns_in_changing_order() -> None:
    seen: list[str] = []
    sides = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    samples = device_time.in_turn(sides, 5, "cpu")
    rounds = [tuple(seen[i : i + 3]) for i in range(0, len(seen), 3)]
    assert len(rounds) == 5 + device_time.WARM_UP and len(set(rounds)) > 1
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert {side: len(found) for side, found in samples.items()} == {"a": 5, "b": 5, "c": 5}


def test_on_the_cpu_the_device_is_the_host() -> None:
    sample = device_time.clock_for("cpu").sample(lambda: time.sleep(0.02))
    assert sample.device_ms == sample.host_ms >= 20


@pytest.mark.skipif(gpu.WHY_NONE is None, reason="there is a GPU")
def test_without_a_gpu_nothing_is_launched() -> None:
    assert device_time.launches(lambda: torch.ones(3)) is None

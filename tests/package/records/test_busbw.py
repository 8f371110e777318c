"""Bytes of bus bandwidth, beside those of the benchmarks."""

from __future__ import annotations

import pytest

from fastcomm._measure.cases import CASES
from fastcomm._records.busbw import OPERATIONS, bus_bytes, factor


@pytest.mark.parametrize("operation", OPERATIONS)
def test_factors_are_those_of_the_benchmarks(operation: str) -> None:
    for size in (2, 4, 7):
        assert factor(operation, size) == CASES[operation].bus_factor(size)


def test_sizes_are_those_of_the_benchmarks() -> None:
    assert bus_bytes("all_reduce", 4000, 4) == 4000 * 1.5
    assert bus_bytes("all_gather", 4000, 4) == 4 * 4000 * 0.75
    assert bus_bytes("reduce_scatter", 4000, 4) == 4 * 4000 * 0.75
    assert bus_bytes("all_to_all", 4000, 4) == 4000 * 0.75
    assert bus_bytes("broadcast", 4000, 4) == 4000


def test_what_has_no_busbw() -> None:
    assert bus_bytes("barrier", 4, 2) is None
    assert bus_bytes("all_reduce", 0, 2) is None

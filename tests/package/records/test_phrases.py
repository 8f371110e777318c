"""Words for ranks, times and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcomm._records.phrases import (
    bytes_text,
    gaps,
    ranges,
    ranks_text,
    runs_text,
    seconds_text,
)


@given(st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_runs_are_the_numbers(numbers: set[int], size: int) -> None:
    assert {n for first, last in ranges(numbers) for n in range(first, last + 1)} == numbers
    inside = {number for number in numbers if number < size}
    assert {n for first, last in gaps(inside, size) for n in range(first, last + 1)} == (
        set(range(size)) - inside
    )


def test_text_of_ranks() -> None:
    assert ranks_text(ranges([2])) == "rank 2"
    assert ranks_text(ranges([3, 2])) == "ranks 2, 3"
    assert runs_text(ranges([0, 2, 3, 4, 7])) == "0, 2-4, 7"
    assert gaps([], 2**31) == [(0, 2**31 - 1)]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0.0 s"), (12.34, "12.3 s"), (125.9, "2 min 5 s"), (3 * 3600 + 61, "3 h 1 min")],
)
def test_text_of_seconds(seconds: float, said: str) -> None:
    assert seconds_text(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1200, "1.2 kB"),
        (5e6, "5.0 MB"),
        (7e9, "7.0 GB"),
        (1e13, "10.0 TB"),
    ],
)
def test_text_of_bytes(number: float, said: str) -> None:
    assert bytes_text(number) == said

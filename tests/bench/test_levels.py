"""Arithmetic on links and levels."""

from __future__ import annotations

import pytest

from fastcomm.bench.levels import SHORT_BYTES, levels_of, partials_of, wire_us

LINKS = [
    {"latency_us": 50.0, "both_gbits": 8.0},
    {"latency_us": 70.0, "both_gbits": 4.0},
    {"latency_us": 60.0, "both_gbits": 8.0},
]


@pytest.mark.parametrize(
    ("ranks", "size", "partials"),
    [([0, 1], 4, 1), ([2, 3], 4, 1), ([0, 2], 4, 2), ([0, 1, 2], 6, 2), ([3, 4, 5], 6, 2),
     ([4, 5, 6, 7], 8, 1), ([1, 3, 5, 7], 8, 4), ([4], 5, 1), ([0, 1, 2], 3, 1)],
)  # fmt: skip
def test_partials_are_the_largest_subtrees_on_a_host(
    ranks: list[int], size: int, partials: int
) -> None:
    assert partials_of(ranks, size) == partials


def test_the_wire_takes_its_messages_and_its_bytes() -> None:
    """4 Gbit/s are 500 bytes a microsecond."""
    assert wire_us(500, 2, 1, LINKS) == 70.0 + 1.0
    assert wire_us(500, 3, 1, LINKS) == 70.0 + 2.0  # the first ranks send to two others
    long = 3 * SHORT_BYTES
    assert wire_us(long, 2, 1, LINKS) == 70.0 + long / 500
    assert wire_us(long, 3, 1, LINKS) == 2 * 70.0 + 2 * 2 / 3 * long / 500
    assert wire_us(500, 2, 2, LINKS) == 2 * 70.0 + 1.5  # two partials of a half, and a sum


@pytest.mark.parametrize(
    ("inside", "wire", "rest", "bound"),
    [(30.0, 60.0, 10.0, "wire"), (70.0, 10.0, 20.0, "inside"), (1.0, 2.0, 97.0, "rest"),
     (60.0, 90.0, 0.0, "wire")],
)  # fmt: skip
def test_the_level_that_takes_longest_bounds(
    inside: float, wire: float, rest: float, bound: str
) -> None:
    rows = [{"backend": "fastcomm", "median_us": 100.0}, {"backend": "inside", "median_us": inside}]
    wanted = {"inside_us": inside, "wire_us": wire, "rest_us": rest, "bound_by": bound}
    assert levels_of(rows, wire) == wanted


def test_of_one_rank_on_each_host_there_is_no_inside() -> None:
    left_out = {"backend": "inside", "left_out": "each host has one rank"}
    found = levels_of([{"backend": "fastcomm", "median_us": 100.0}, left_out], 40.0)
    assert (found["inside_us"], found["rest_us"], found["bound_by"]) == (0.0, 60.0, "rest")

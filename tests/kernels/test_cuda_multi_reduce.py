"""The batched CUDA reduction without a GPU: its source runs on the host under the execution shim.

Results are compared to the bit inside the C++ program (tests/cpp/shim_multi_reduce_test.cpp). Two
blocks that work on the same chunks must be reported by ThreadSanitizer.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, SHIM_BOUNDS, WATCHED

TEST = "shim_multi_reduce_test"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bits_of_every_dtype_and_number_of_sources(seed: int) -> None:
    """1 to 16 sources and destinations, mixed types, divided and scaled, misaligned, in place."""
    programs.check(programs.get(TEST, SHIM), "sums", str(seed))


@pytest.mark.parametrize("case", ["negative_zeros", "lies", "conversions", "refused"])
def test_corners(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case)


@pytest.mark.parametrize("seed", [1, 2])
def test_tables_of_every_size(seed: int) -> None:
    """0 to 3000 tensors, empty ones among them, around the capacities of a launch."""
    programs.check(programs.get(TEST, SHIM), "tables", str(seed))


def test_within_bounds() -> None:
    programs.check(programs.get(TEST, SHIM_BOUNDS), "all", "4")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_data_race(seed: int) -> None:
    output = programs.check(programs.get(TEST, WATCHED), "race", str(seed))
    assert "ThreadSanitizer" not in output


def test_shared_chunks_are_reported() -> None:
    result = programs.run(programs.get(TEST, WATCHED), "race", "1", control="share_chunks")
    reported = programs.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    places = ("csrc/kernels/cuda/", "SegmentWorker")
    assert all(any(place in line for place in places) for line in reported), reported


@pytest.mark.release
@pytest.mark.parametrize("seed", range(100, 120))
def test_bits_with_more_values(seed: int) -> None:
    programs.check(programs.get(TEST, SHIM), "sums", str(seed))

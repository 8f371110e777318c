"""Batched MIN, MAX, PRODUCT, PREMUL_SUM, BAND, BOR and BXOR on CUDA without a GPU.

Their source runs on the host under the execution shim. Results are compared to the bit with the
CPU's loops inside the C++ program (tests/cpp/shim_multi_combine_test.cpp). Two blocks that work on
the same chunks must be reported by ThreadSanitizer, and a kernel that works on after a failure by
the comparison.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, SHIM_BOUNDS, WATCHED

TEST = "shim_multi_combine_test"


def test_the_bits_of_the_cpu() -> None:
    """Every type and reduction, 1 to 16 sources, special values, misaligned, in place."""
    programs.check(programs.get(TEST, SHIM), "bits", "1")


@pytest.mark.parametrize("case", ["tables", "failed", "refused"])
def test_corners(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case)


def test_work_behind_a_failure_is_reported() -> None:
    result = programs.run(programs.get(TEST, SHIM), "failed", control="work_on")
    assert result.returncode != 0 and "max of float32" in result.stdout, result.stdout


def test_within_bounds() -> None:
    programs.check(programs.get(TEST, SHIM_BOUNDS), "all", "2")


def test_no_data_race() -> None:
    output = programs.check(programs.get(TEST, WATCHED), "race", "1")
    assert "ThreadSanitizer" not in output


def test_shared_chunks_are_reported() -> None:
    result = programs.run(programs.get(TEST, WATCHED), "race", "1", control="share_chunks")
    reported = programs.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    assert all("csrc/kernels/cuda/" in line for line in reported), reported


@pytest.mark.release
@pytest.mark.parametrize("seed", range(100, 110))
def test_bits_with_more_values(seed: int) -> None:
    programs.check(programs.get(TEST, SHIM), "bits", str(seed))

"""The CUDA all_reduce without a GPU: its source runs on the host under the execution shim.

Results are compared to the bit inside the C++ program (tests/cpp/shim_all_reduce_test.cpp). Here
it runs, and runs again under ThreadSanitizer; with one flag weakened or one barrier left out it
must be reported, else the sanitizer's silence would mean nothing.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, WATCHED, WATCHED_ALL

TEST = "shim_all_reduce_test"
# Files, and functions: some versions of the sanitizer do not find every file.
MOVES_DATA = ("copy_block.h", "reduce_pack.h", "CudaExecutor", "::copy_", "::pack_between")


@pytest.mark.parametrize("case", ["shim", "failures"])
def test_shim_and_failed_waits(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bits_of_every_dtype_and_size(seed: int) -> None:
    """2 to 9, 12 and 16 ranks, SUM and AVG, odd sizes, misaligned, in place, flags that wrap."""
    assert "16 ranks" in programs.check(programs.get(TEST, SHIM), "sums", str(seed))


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_no_data_race(seed: int) -> None:
    output = programs.check(programs.get(TEST, WATCHED), "race", str(seed))
    assert "ThreadSanitizer" not in output


@pytest.mark.parametrize("control", ["weaken_publish", "weaken_wait", "no_barrier"])
def test_negative_control_is_reported(control: str) -> None:
    result = programs.run(programs.get(TEST, WATCHED), "race", "1", control=control)
    reported = programs.races(result.stdout)
    assert reported, f"ThreadSanitizer missed {control}:\n{result.stdout}"
    # In what moves data, not somewhere in the test or the shim.
    assert all(any(place in line for place in MOVES_DATA) for line in reported), reported


@pytest.mark.release
def test_no_data_race_in_any_kernel() -> None:
    output = programs.check(programs.get(TEST, WATCHED_ALL), "sums", "1", timeout=280)
    assert "ThreadSanitizer" not in output


@pytest.mark.release
@pytest.mark.parametrize("seed", range(100, 120))
def test_bits_with_more_interleavings(seed: int) -> None:
    programs.check(programs.get(TEST, SHIM), "sums", str(seed))

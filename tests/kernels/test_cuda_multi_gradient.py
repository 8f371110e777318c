"""The reduction of gradients with norms, without a GPU: its source runs under the execution shim.

Every byte and every norm is compared inside tests/cpp/shim_multi_gradient_test.cpp with a plain
reference and with the loops of the CPU. A missing barrier, and two blocks that work on the same
chunks, must be reported by ThreadSanitizer.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, SHIM_BOUNDS, WATCHED

TEST = "shim_multi_gradient_test"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", ["sums", "norms", "special"])
def test_bits_are_those_of_the_reference_and_of_the_cpu(case: str, seed: int) -> None:
    """1 to 16 sources, every type and wire, misaligned, in place, with NaNs and infinities."""
    programs.check(programs.get(TEST, SHIM), case, str(seed))


@pytest.mark.parametrize("case", ["joins", "long"])
def test_norms_are_joined_in_the_order_of_the_reference(case: str) -> None:
    """Up to 65,537 tensors, and a tensor of 2,051 blocks: more than a tile of the kernels."""
    programs.check(programs.get(TEST, SHIM), case)


@pytest.mark.parametrize("case", ["tables", "refused"])
def test_lists_of_every_length_and_what_is_refused(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case)


def test_within_bounds() -> None:
    programs.check(programs.get(TEST, SHIM_BOUNDS), "all", "4")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_data_race(seed: int) -> None:
    output = programs.check(programs.get(TEST, WATCHED), "race", str(seed))
    assert "ThreadSanitizer" not in output


@pytest.mark.parametrize("control", ["no_barrier", "no_lane_barrier", "share_chunks"])
def test_broken_kernels_are_reported(control: str) -> None:
    result = programs.run(programs.get(TEST, WATCHED), "race", "1", control=control)
    reported = programs.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    assert all("csrc/kernels/" in line or "operator()" in line for line in reported), reported


@pytest.mark.release
@pytest.mark.parametrize("seed", range(100, 110))
def test_bits_with_more_values(seed: int) -> None:
    for case in ("sums", "special", "tables"):
        programs.check(programs.get(TEST, SHIM), case, str(seed))

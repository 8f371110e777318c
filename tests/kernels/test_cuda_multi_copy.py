"""The batched CUDA copy without a GPU: its source runs on the host under the execution shim.

Every byte is compared inside the C++ program (tests/cpp/shim_multi_copy_test.cpp). Two blocks that
work on the same chunks must be reported by ThreadSanitizer.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM_BOUNDS, WATCHED

TEST = "shim_multi_copy_test"


@pytest.mark.parametrize("case", ["alignments", "division", "exact", "grid", "refused"])
def test_every_byte(case: str) -> None:
    """Every pair of alignments, sizes around packs and chunks, guards around every destination.

    Under AddressSanitizer and UndefinedBehaviorSanitizer: no byte outside a source is read.
    """
    programs.check(programs.get(TEST, SHIM_BOUNDS), case)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tables_of_every_size(seed: int) -> None:
    """0 to 3000 segments, empty ones among them, around the capacities of a launch."""
    programs.check(programs.get(TEST, SHIM_BOUNDS), "tables", str(seed))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_data_race(seed: int) -> None:
    output = programs.check(programs.get(TEST, WATCHED), "race", str(seed))
    assert "ThreadSanitizer" not in output


def test_shared_chunks_are_reported() -> None:
    result = programs.run(programs.get(TEST, WATCHED), "race", "1", control="share_chunks")
    reported = programs.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    assert all("fastcomm::copy_" in line for line in reported), reported

"""The loops behind ``all_reduce_add_rms_norm_``, to the bit, for each instruction set."""

from __future__ import annotations

import pytest
from support import programs
from support.instruction_sets import NEEDED, skip_unless_it_runs
from support.programs import BOUNDS, PLAIN

TEST = "add_rms_norm_test"  # PLAIN has the library's own loops


@pytest.mark.parametrize("isa", list(NEEDED))
def test_bits(isa: str) -> None:
    """Rows of many lengths, misaligned; with NaN, infinities, zeros, extremes and subnormals."""
    skip_unless_it_runs(isa)
    chosen = {"FASTCOMM_ISA": isa}
    output = programs.check(programs.get(TEST, PLAIN), "all", "1", environment=chosen)
    assert f"isa {isa}\n" in output


def test_bits_in_bounds() -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer."""
    programs.check(programs.get(TEST, BOUNDS), "all", "2")

"""The CPU's reduction loops and conversions, to the bit, for each instruction set."""

from __future__ import annotations

import pytest
from support import programs
from support.instruction_sets import NEEDED, skip_unless_it_runs
from support.programs import BOUNDS, PLAIN

TEST = "reduce_test"  # PLAIN has the library's own loops: what the compiler made is what is tested
CONVERSIONS = "conversions_test"


@pytest.mark.parametrize("isa", list(NEEDED))
def test_bits(isa: str) -> None:
    """Every dtype and reduction, 1 to 20 and 64 sources, in place, two destinations, misaligned.

    NaN, zeros of both signs, infinities, subnormals, flushed too.
    """
    skip_unless_it_runs(isa)
    chosen = {"FASTCOMM_ISA": isa}
    output = programs.check(programs.get(TEST, PLAIN), "all", "1", environment=chosen)
    assert f"isa {isa}\n" in output


def test_bits_in_bounds() -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer."""
    programs.check(programs.get(TEST, BOUNDS), "bits", "2")


def test_conversions() -> None:
    """All values of fp16 and bf16, all midpoints and their neighbours; with subnormals flushed."""
    programs.check(programs.get(CONVERSIONS, PLAIN), "conversions")


@pytest.mark.release
@pytest.mark.timeout(600)  # some seconds; minutes where the processor converts no halves
def test_every_float_to_half() -> None:
    programs.check(programs.get(CONVERSIONS, PLAIN), "every_float", timeout=580)


@pytest.mark.parametrize("isa", list(NEEDED))
def test_conversions_in_loops(isa: str) -> None:
    """Every fp16 and bf16, and one in 61 floats of every exponent; also with subnormals flushed."""
    skip_unless_it_runs(isa)
    program = programs.get(CONVERSIONS, PLAIN)
    output = programs.check(program, "some", environment={"FASTCOMM_ISA": isa})
    assert f"isa {isa}\n" in output
    programs.check(program, "feedback", "1", environment={"FASTCOMM_ISA": isa})


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.parametrize("isa", list(NEEDED))
def test_every_float_in_loops(isa: str) -> None:
    skip_unless_it_runs(isa)
    chosen = {"FASTCOMM_ISA": isa}
    programs.check(programs.get(CONVERSIONS, PLAIN), "all", environment=chosen, timeout=580)


def test_conversions_in_bounds() -> None:
    for case in ("few", "feedback"):
        programs.check(programs.get(CONVERSIONS, BOUNDS), case, "2")

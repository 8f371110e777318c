"""The CPU's reduction loops and conversions, to the bit, for each instruction set."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import cpp_build

TEST = "tests/cpp/reduce_test.cpp"
KERNELS = ("csrc/kernels/", "csrc/core/")
NEEDED = {"generic": set(), "avx2": {"avx2", "f16c"}}
NEEDED["avx512"] = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c"}


@pytest.fixture(scope="module")
def program() -> cpp_build.Program:
    sources = [s for s in cpp_build.native_sources(variants=True) if s.startswith(KERNELS)]
    # The library's own flags: what the compiler makes of the loops is what is tested.
    return cpp_build.build("reduce_test", [*sources, TEST], ["-O3"])


def skip_unless_it_runs(isa: str) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    if not NEEDED[isa] <= flags:
        pytest.skip(f"this processor has no {isa}")


@pytest.mark.parametrize("case", ["bits", "flushed_bits"])
@pytest.mark.parametrize("isa", list(NEEDED))
def test_bits(program: cpp_build.Program, isa: str, case: str) -> None:
    """Every dtype, 1 to 20 sources, SUM and AVG, in place, two destinations, odd and misaligned."""
    skip_unless_it_runs(isa)
    output = cpp_build.check(program, case, "1", environment={"FASTCOMM_ISA": isa})
    assert case != "bits" or f"isa {isa}\n" in output


def test_conversions(program: cpp_build.Program) -> None:
    """All values of fp16 and bf16, all midpoints and their neighbours; with subnormals flushed."""
    cpp_build.check(program, "conversions")


@pytest.mark.slow
@pytest.mark.timeout(600)  # some seconds; minutes where the processor converts no halves
def test_every_float_to_half(program: cpp_build.Program) -> None:
    cpp_build.check(program, "every_float", timeout=580)


def test_sums_in_bounds() -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer."""
    sources = [s for s in cpp_build.native_sources(variants=False) if s.startswith(KERNELS)]
    cpp_build.check(cpp_build.build("reduce_test", [*sources, TEST], cpp_build.ASAN), "bits", "2")

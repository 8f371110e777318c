"""nvcc's own code of every kernel, executed without a GPU.

The programs of tests/cpp that a GPU runs (tests/gpu/test_programs.py), with kernels as PTX. They
compare every byte with a reference that the host computes. Each access of a kernel is checked: it
is aligned, and all of it lies inside of one allocation.
"""

from __future__ import annotations

import pytest
from ptx import build
from support import programs

pytestmark = pytest.mark.nvcc

CASES = {
    "multi_copy": ("division", "tables", "race", "refused"),
    "multi_reduce": ("sums", "negative_zeros", "tables", "conversions", "race", "refused"),
    "multi_combine": ("bits", "tables", "failed", "race", "refused"),
    "multi_gradient": ("sums", "norms", "joins", "special", "race", "race_alone", "refused"),
    "device_set": ("meet", "staging", "errors"),
    "exchange": ("direct", "staged", "repeated", "threads", "refused"),
    # Ranks are threads: every type and reduction, 2 to 16 ranks in one launch.
    "peer_threads": ("types", "broadcasts", "rounds", "at_once", "mixed"),
    # Ranks are processes.
    "peer_collectives": ("bits", "two", "one_queue", "pairs", "unlike_pairs", "mismatch", "late"),
}


def test_every_kernel_is_understood() -> None:
    files = build.ptx_files()
    output = programs.check(build.program("check"), *map(str, files))
    kernels = sum(path.read_text().count(".entry ") for path in files)
    assert output == f"{kernels} kernels\n" and kernels > 100, output


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in CASES for case in CASES[name]])
def test_every_byte(name: str, case: str) -> None:
    programs.check(build.program(name), case, "1", environment=build.environment())


@pytest.mark.release
def test_every_byte_of_rounds() -> None:
    """Every type and reduction, 2 to 8 ranks."""
    program = build.program("peer_threads")
    programs.check(program, "types_in_rounds", "1", environment=build.environment())

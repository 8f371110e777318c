"""Memory of the shim's devices that other processes map: handles, and the order between processes.

What flags order is known, not guessed from timing: a negative control gives the same reports in
every run.
"""

from __future__ import annotations

import re

import pytest
from support import programs
from support.programs import SHIM

HANDLES = "shim_ipc_test"
ORDER = "shim_ipc_order_test"
ALL_REDUCE = "shim_ipc_all_reduce_test"
DESCRIPTORS = "shim_vmm_test"


@pytest.mark.parametrize("case", ["handles", "data", "ends"])
def test_handles_between_processes(case: str) -> None:
    programs.check(programs.get(HANDLES, SHIM), case, "3")


@pytest.mark.parametrize("case", ["refused", "shared", "ends"])
def test_descriptors_between_processes(case: str) -> None:
    programs.check(programs.get(DESCRIPTORS, SHIM), case, "3")


@pytest.mark.parametrize("case", ["shadow", "clocks", "words", "host"])
def test_order_between_processes(case: str) -> None:
    programs.check(programs.get(ORDER, SHIM), case, "3")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_reduce_between_processes(seed: int) -> None:
    """The bits of the tree, and every use of the others' windows in order."""
    programs.check(programs.get(ALL_REDUCE, SHIM), "bits", str(seed))


@pytest.mark.parametrize("case", ["one", "death"])
def test_all_reduce_in_order_and_with_a_rank_that_is_killed(case: str) -> None:
    programs.check(programs.get(ALL_REDUCE, SHIM), case)


@pytest.mark.parametrize("seed", ["1", "2", "3", "4", "5"])
@pytest.mark.parametrize("control", ["weaken_publish", "weaken_wait", "no_barrier"])
def test_negative_control_is_reported_by_its_order(control: str, seed: str) -> None:
    result = programs.run(programs.get(ALL_REDUCE, SHIM), "one", seed, control=control)
    hazards = [line for line in result.stdout.splitlines() if "a hazard: " in line]
    # Each rank reads what the other has written, and nothing says that it has.
    kernel = r"all_reduce.cu: kernel \(device \d, stream \d+\) in process \d+, block 0"
    read = re.compile(
        rf"rank (\d): a hazard: {kernel} reads 400 bytes at 64 of memory of process \d+,"
        rf" which {kernel} writes, and nothing orders"
    )
    ranks = sorted(found.group(1) for found in map(read.search, hazards) if found)
    assert result.returncode != 0 and ranks == ["0", "1"], result.stdout

"""Memory of the shim's devices that other processes map: handles, and the order between processes.

What flags order is known, not guessed from timing: a negative control gives the same reports in
every run.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM

HANDLES = "shim_ipc_test"
ORDER = "shim_ipc_order_test"
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

"""Memory of the shim's devices that other processes map: handles, and what they refuse."""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM

TEST = "shim_ipc_test"


@pytest.mark.parametrize("case", ["handles", "data", "ends"])
def test_handles_between_processes(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case, "3")

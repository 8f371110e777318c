"""Shared memory between processes, without torch: segments, groups, deaths, hostile peers.

The C++ programs check by themselves; here they run with and without sanitizers, which look for
leaks too.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, Build

CASES = {
    "shm_test": ["segment", "settled", "groups", "bound", "reuse", "churn", "no_endpoint", "stale"],
    "shm_ends_test": ["death", "exit", "fork"],
    "handshake_test": ["accept", "records", "silent", "answer", "segment", "other_user"],
    "forming_test": ["world_size", "nonsense"],
    "shared_buffer_test": ["reach", "quarantine", "fork", "full"],
}


@pytest.mark.parametrize(("build", "seed"), [(PLAIN, "1"), (BOUNDS, "2")], ids=["plain", "bounds"])
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_processes(name: str, case: str, build: Build, seed: str) -> None:
    output = programs.check(programs.get(name, build), case, seed)
    if "SKIPPED: " in output:
        pytest.skip(output.split("SKIPPED: ")[1].splitlines()[0])

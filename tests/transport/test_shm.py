"""Shared memory between processes, without torch: segments, groups, deaths, hostile peers.

The C++ programs check by themselves; here they run with and without sanitizers.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN

GROUPS = "shm_test"
GROUP_CASES = ["segment", "settled", "groups", "reuse", "churn", "no_endpoint", "stale"]
ENDS = "shm_ends_test"
END_CASES = ["death", "exit", "fork"]
HANDSHAKE = "handshake_test"
HANDSHAKE_CASES = ["accept", "silent", "answer", "segment", "other_user"]
FORMING = "forming_test"
FORMING_CASES = ["world_size", "nonsense"]
BUFFERS = "shared_buffer_test"
BUFFER_CASES = ["reach", "quarantine", "fork", "full"]
CASES = [
    *((GROUPS, case) for case in GROUP_CASES),
    *((ENDS, case) for case in END_CASES),
    *((HANDSHAKE, case) for case in HANDSHAKE_CASES),
    *((FORMING, case) for case in FORMING_CASES),
    *((BUFFERS, case) for case in BUFFER_CASES),
]


def skip_as_told(output: str) -> None:
    if "SKIPPED: " in output:
        pytest.skip(output.split("SKIPPED: ")[1].splitlines()[0])


@pytest.mark.parametrize(("name", "case"), CASES)
def test_processes(name: str, case: str) -> None:
    skip_as_told(programs.check(programs.get(name, PLAIN), case, "1"))


@pytest.mark.parametrize(("name", "case"), CASES)
def test_processes_in_bounds(name: str, case: str) -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer, leaks included."""
    skip_as_told(programs.check(programs.get(name, BOUNDS), case, "2"))

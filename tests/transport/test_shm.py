"""Shared memory between processes, without torch: segments, groups, deaths, hostile peers.

The C++ programs check by themselves; here they are built with and without sanitizers.
"""

from __future__ import annotations

import pytest
from support import cpp_build

GROUPS = "tests/cpp/shm_test.cpp"
GROUP_CASES = ["segment", "groups", "reuse", "churn", "no_endpoint", "stale"]
ENDS = "tests/cpp/shm_ends_test.cpp"
END_CASES = ["death", "exit", "fork"]
HANDSHAKE = "tests/cpp/handshake_test.cpp"
HANDSHAKE_CASES = ["accept", "silent", "answer", "segment", "other_user"]
FORMING = "tests/cpp/forming_test.cpp"
FORMING_CASES = ["world_size", "nonsense"]
BUFFERS = "tests/cpp/shared_buffer_test.cpp"
BUFFER_CASES = ["reach", "quarantine", "fork", "full"]
CASES = [
    *((GROUPS, case) for case in GROUP_CASES),
    *((ENDS, case) for case in END_CASES),
    *((HANDSHAKE, case) for case in HANDSHAKE_CASES),
    *((FORMING, case) for case in FORMING_CASES),
    *((BUFFERS, case) for case in BUFFER_CASES),
]


def build(source: str, flags: list[str]) -> cpp_build.Program:
    sources = [*cpp_build.native_sources(variants=False), source]
    return cpp_build.build(source.split("/")[-1].removesuffix(".cpp"), sources, flags)


def skip_as_told(output: str) -> None:
    if "SKIPPED: " in output:
        pytest.skip(output.split("SKIPPED: ")[1].splitlines()[0])


@pytest.mark.parametrize(("source", "case"), CASES)
def test_processes(source: str, case: str) -> None:
    skip_as_told(cpp_build.check(build(source, cpp_build.PLAIN), case, "1"))


@pytest.mark.parametrize(("source", "case"), CASES)
def test_processes_in_bounds(source: str, case: str) -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer, leaks included."""
    skip_as_told(cpp_build.check(build(source, cpp_build.ASAN), case, "2"))

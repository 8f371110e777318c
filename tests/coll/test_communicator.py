"""Communicators of ranks as threads, without torch: results to the bit, failures, data races.

The C++ programs check by themselves; here they are built with and without sanitizers. Builds with
one flag weakened must be reported by ThreadSanitizer, else its silence would mean nothing.
"""

from __future__ import annotations

import pytest
from support import cpp_build

RANDOM = "tests/cpp/communicator_test.cpp"
FAILURES = "tests/cpp/communicator_failures_test.cpp"
TIMEOUTS = "tests/cpp/communicator_timeouts_test.cpp"
MEETINGS = "tests/cpp/communicator_meeting_test.cpp"
ENGINE = "tests/cpp/communicator_engine_test.cpp"
EVIDENCE = "tests/cpp/communicator_evidence_test.cpp"
# FC_SHIM gives the processor away at flag operations, so that one run sees many orders of events.
WATCHED = [*cpp_build.TSAN, "-DFC_SHIM"]
# What can be weakened: the negative controls compile only these anew.
WEAKENED = [
    *("csrc/coll/operation.cpp", "csrc/coll/communicator.cpp"),
    "csrc/coll/communicator_engine.cpp",
]
# In each of them a weakened flag must be reported.
SCHEDULES = [
    *("AllReduceOneShot", "AllReduceTwoShot", "ReduceScatterOneShot", "ReduceScatterPipelined"),
    *("AllGather", "Broadcast"),
]
CASES = ["random", "wrap", "opposite", "threads", "release"]
FAILURE_CASES = [
    *("mismatch", "leave", "trouble_later", "abort", "interrupt", "lost", "quarantine"),
    *("start_is_short", "relayed", "no_thread"),
]
TIMEOUT_CASES = ["late", "told", "held_up", "wait_timeout"]
MEETING_CASES = ["order", "mismatch", "absent", "given_up"]
ENGINE_CASES = ["lost", "trouble_later", "stalled", "refuse", "engine_failed"]
EVIDENCE_CASES = ["goodbye", "poison", "exit", "in_place"]
FAILING = [
    *((FAILURES, case) for case in FAILURE_CASES),
    *((TIMEOUTS, case) for case in TIMEOUT_CASES),
    *((MEETINGS, case) for case in MEETING_CASES),
    *((ENGINE, case) for case in ENGINE_CASES),
    *((EVIDENCE, case) for case in EVIDENCE_CASES),
]
# Sanitizers are too slow for the moments that "late" measures, and start threads in their own way.
NOT_WATCHED = ["late", "no_thread"]
WATCHED_FAILING = [(s, case) for s, case in FAILING if case not in NOT_WATCHED and s != EVIDENCE]


def build(source: str, flags: list[str]) -> cpp_build.Program:
    sources = [*cpp_build.native_sources(variants=False), source]
    return cpp_build.build(source.split("/")[-1].removesuffix(".cpp"), sources, flags)


def run_weakened(watched: cpp_build.Program, source: str, case: str, control: str) -> str:
    """Build what may be weakened, and the test, with the macro ``control``; run one case."""
    rest = [path for other, path in watched.objects.items() if other not in (*WEAKENED, RANDOM)]
    weak = cpp_build.build("weak", [*WEAKENED, source], [*WATCHED, f"-D{control}"], rest)
    return cpp_build.run(weak, case, "1").stdout


@pytest.fixture(scope="module")
def plain() -> cpp_build.Program:
    return build(RANDOM, cpp_build.PLAIN)


@pytest.fixture(scope="module")
def watched() -> cpp_build.Program:
    return build(RANDOM, WATCHED)


@pytest.mark.parametrize("case", CASES)
def test_operations(plain: cpp_build.Program, case: str) -> None:
    cpp_build.check(plain, case, "1")


@pytest.mark.parametrize(("source", "case"), FAILING)
def test_failures(source: str, case: str) -> None:
    cpp_build.check(build(source, cpp_build.PLAIN), case, "1")


@pytest.mark.parametrize("case", CASES)
def test_operations_without_race(watched: cpp_build.Program, case: str) -> None:
    output = cpp_build.check(watched, case, "2", environment={"FC_TEST_OPERATIONS": "30"})
    assert "ThreadSanitizer" not in output


@pytest.mark.parametrize(("source", "case"), WATCHED_FAILING)
def test_failures_without_race(source: str, case: str) -> None:
    assert "ThreadSanitizer" not in cpp_build.check(build(source, WATCHED), case, "2")


@pytest.mark.parametrize("control", ["FC_WEAKEN_PUBLISH", "FC_WEAKEN_WAIT"])
def test_negative_control_is_reported(watched: cpp_build.Program, control: str) -> None:
    output = run_weakened(watched, RANDOM, "random", control)
    assert cpp_build.races(output), f"ThreadSanitizer missed {control}"
    for schedule in SCHEDULES:
        assert schedule in output, f"ThreadSanitizer missed {control} in {schedule}"


def test_meetings_out_of_turn_are_reported(watched: cpp_build.Program) -> None:
    assert cpp_build.races(run_weakened(watched, MEETINGS, "order", "FC_MEETINGS_OUT_OF_TURN"))


@pytest.mark.parametrize("case", ["random", "wrap", "threads"])
def test_operations_in_bounds(case: str) -> None:
    cpp_build.check(build(RANDOM, cpp_build.ASAN), case, "3")


@pytest.mark.parametrize(("source", "case"), WATCHED_FAILING)
def test_failures_in_bounds(source: str, case: str) -> None:
    cpp_build.check(build(source, cpp_build.ASAN), case, "3")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_operations(plain: cpp_build.Program, seed: int) -> None:
    cpp_build.check(plain, "random", str(seed), environment={"FC_TEST_OPERATIONS": "400"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 24))
def test_many_operations_without_race(watched: cpp_build.Program, seed: int) -> None:
    for case in CASES:
        assert "ThreadSanitizer" not in cpp_build.check(watched, case, str(seed))

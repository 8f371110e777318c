"""Communicators of ranks as threads, without torch: results to the bit, failures, data races.

The C++ programs check by themselves; here they run with and without sanitizers. With one flag
weakened ThreadSanitizer must report, else its silence would mean nothing.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED

RANDOM = "communicator_test"
FAILURES = "communicator_failures_test"
TIMEOUTS = "communicator_timeouts_test"
EVIDENCE = "communicator_evidence_test"
# In each of them a weakened flag must be reported.
SCHEDULES = [
    *("AllReduceOneShot", "AllReduceTwoShot", "ReduceScatterOneShot", "ReduceScatterPipelined"),
    *("AllGather", "Broadcast", "AllToAllV"),
]
CASES = ["random", "wrap", "opposite", "threads", "release"]
FAILURE_CASES = [
    *("mismatch", "leave", "trouble_later", "abort", "interrupt", "lost", "quarantine"),
    *("start_is_short", "relayed", "no_thread"),
]
TIMEOUT_CASES = ["late", "too_late", "too_late_message", "told", "held_up", "wait_timeout"]
EVIDENCE_CASES = ["leave", "poison", "exit", "in_place"]
FAILING = [
    *((FAILURES, case) for case in FAILURE_CASES),
    *((TIMEOUTS, case) for case in TIMEOUT_CASES),
    *((EVIDENCE, case) for case in EVIDENCE_CASES),
]
# Sanitizers are too slow for the moments that "late" measures, and start threads in their own way.
NOT_WATCHED = ["late", "no_thread"]
WATCHED_FAILING = [(s, case) for s, case in FAILING if case not in NOT_WATCHED and s != EVIDENCE]


@pytest.mark.parametrize("case", CASES)
def test_operations(case: str) -> None:
    programs.check(programs.get(RANDOM, PLAIN), case, "1")


def alone(cases: list[tuple[str, str]]) -> list[object]:
    """Return cases as parameters; those that look at times run alone."""
    mark = {TIMEOUTS: (pytest.mark.serial,)}
    return [pytest.param(name, case, marks=mark.get(name, ())) for name, case in cases]


@pytest.mark.parametrize(("name", "case"), alone(FAILING))
def test_failures(name: str, case: str) -> None:
    programs.check(programs.get(name, PLAIN), case, "1")


@pytest.mark.parametrize("case", CASES)
def test_operations_without_race(case: str) -> None:
    few = {"FC_TEST_OPERATIONS": "30"}
    output = programs.check(programs.get(RANDOM, WATCHED), case, "2", environment=few)
    assert "ThreadSanitizer" not in output


@pytest.mark.parametrize(("name", "case"), WATCHED_FAILING)
def test_failures_without_race(name: str, case: str) -> None:
    assert "ThreadSanitizer" not in programs.check(programs.get(name, WATCHED), case, "2")


@pytest.mark.parametrize("control", ["weaken_publish", "weaken_wait"])
def test_negative_control_is_reported(control: str) -> None:
    output = programs.run(programs.get(RANDOM, WATCHED), "random", "1", control=control).stdout
    assert programs.races(output), f"ThreadSanitizer missed {control}"
    for schedule in SCHEDULES:
        assert schedule in output, f"ThreadSanitizer missed {control} in {schedule}"


def test_result_of_a_tensor_that_was_given_back_is_noticed() -> None:
    program = programs.get(EVIDENCE, WATCHED)
    done = programs.run(program, "in_place", "1", control="no_second_look")
    assert done.returncode != 0 and "ended well" in done.stdout, done.stdout[-2000:]


@pytest.mark.parametrize("case", ["too_late", "too_late_message"])
def test_call_after_the_group_was_given_up_is_noticed(case: str) -> None:
    done = programs.run(programs.get(TIMEOUTS, WATCHED), case, "1", control="no_first_look")
    assert done.returncode != 0 and "ended well" in done.stdout, done.stdout[-2000:]
    assert not programs.races(done.stdout), done.stdout[:2000]


@pytest.mark.parametrize("case", ["random", "wrap", "threads"])
def test_operations_in_bounds(case: str) -> None:
    programs.check(programs.get(RANDOM, BOUNDS), case, "3")


@pytest.mark.parametrize(("name", "case"), WATCHED_FAILING)
def test_failures_in_bounds(name: str, case: str) -> None:
    programs.check(programs.get(name, BOUNDS), case, "3")


@pytest.mark.release
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_operations(seed: int) -> None:
    many = {"FC_TEST_OPERATIONS": "400"}
    programs.check(programs.get(RANDOM, PLAIN), "random", str(seed), environment=many)


@pytest.mark.release
@pytest.mark.parametrize("seed", range(20, 24))
def test_many_operations_without_race(seed: int) -> None:
    for case in CASES:
        output = programs.check(programs.get(RANDOM, WATCHED), case, str(seed))
        assert "ThreadSanitizer" not in output

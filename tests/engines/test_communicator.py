"""Communicators of ranks as threads, without torch: results to the bit, failures, data races.

The C++ programs check by themselves; here they run with and without sanitizers. With one flag
weakened, ThreadSanitizer must report a race.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED, Build

RANDOM = "communicator_test"
FAILURES = "communicator_failures_test"
TIMEOUTS = "communicator_timeouts_test"
EVIDENCE = "communicator_evidence_test"
# Schedules in which a weakened flag must be reported.
SCHEDULES = [
    *("AllReduceOneShot", "AllReduceTwoShot", "ReduceScatterOneShot", "ReduceScatterPipelined"),
    *("AllGather", "Broadcast", "AllToAllV", "ShortCalls"),
]
CASES = {
    RANDOM: [
        *("again", "again_late", "shortly", "random", "wrap", "opposite", "threads", "release"),
    ],
    FAILURES: [
        *("mismatch", "leave", "trouble_later", "abort", "interrupt", "lost", "quarantine"),
        *("start_is_short", "relayed", "no_thread"),
    ],
    TIMEOUTS: ["late", "too_late", "too_late_message", "told", "held_up", "wait_timeout"],
    EVIDENCE: ["leave", "poison", "exit", "in_place"],
}
# Sanitizers are too slow for the times of "late"; under them "no_thread" cannot keep threads away.
ONLY_PLAIN = ["late", "no_thread"]
SEEDS = {PLAIN: "1", WATCHED: "2", BOUNDS: "3"}
FEW = {"FC_TEST_OPERATIONS": "30"}


def runs() -> Iterator[object]:
    """Yield every case with every build that it can have; those that compare times run alone."""
    for build in SEEDS:
        for name, cases in CASES.items():
            for case in cases:
                if build is PLAIN or (name != EVIDENCE and case not in ONLY_PLAIN):
                    alone = (pytest.mark.serial,) if build is PLAIN and name == TIMEOUTS else ()
                    label = f"{name}-{case}-{build.name}"
                    yield pytest.param(name, case, build, marks=alone, id=label)


@pytest.mark.parametrize(("name", "case", "build"), runs())
def test_case(name: str, case: str, build: Build) -> None:
    few = None if build is PLAIN else FEW
    programs.check(programs.get(name, build), case, SEEDS[build], environment=few)


@pytest.mark.parametrize("control", ["weaken_publish", "weaken_wait"])
def test_negative_control_is_reported(control: str) -> None:
    output = programs.run(programs.get(RANDOM, WATCHED), "random", "1", control=control).stdout
    assert programs.races(output), f"ThreadSanitizer missed {control}"
    for schedule in SCHEDULES:
        assert schedule in output, f"ThreadSanitizer missed {control} in {schedule}"


def test_an_operation_that_is_used_again_while_it_is_held_is_noticed() -> None:
    program = programs.get(RANDOM, WATCHED)
    programs.check_failure(program, "again", "1", says="while it was held", control="use_held")


def test_result_of_a_tensor_that_was_given_back_is_noticed() -> None:
    """A reduction that skips its last check for peers that gave up takes such a tensor's values."""
    program = programs.get(EVIDENCE, WATCHED)
    programs.check_failure(program, "in_place", "1", says="ended well", control="no_second_look")


@pytest.mark.parametrize("case", ["too_late", "too_late_message"])
def test_call_after_the_group_was_given_up_is_noticed(case: str) -> None:
    """A call that skips its first check does not see that the group has failed."""
    program = programs.get(TIMEOUTS, WATCHED)
    output = programs.check_failure(program, case, "1", says="ended well", control="no_first_look")
    assert not programs.races(output), output[:2000]


@pytest.mark.release
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_operations(seed: int) -> None:
    many = {"FC_TEST_OPERATIONS": "400"}
    programs.check(programs.get(RANDOM, PLAIN), "random", str(seed), environment=many)


@pytest.mark.release
@pytest.mark.parametrize("seed", range(20, 24))
def test_many_operations_without_race(seed: int) -> None:
    for case in CASES[RANDOM]:
        programs.check(programs.get(RANDOM, WATCHED), case, str(seed))

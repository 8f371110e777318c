"""Sends and receives of ranks as threads, without torch: values, order, failures, data races.

If one word of a ring is published or read with relaxed order, ThreadSanitizer must report it.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import BOUNDS, PLAIN, WATCHED, Build

VALUES = "point_to_point_test"
FAILURES = "point_to_point_failures_test"
VALUE_CASES = [
    *("sizes", "random", "full", "background", "any_source", "order", "threads", "hand_over"),
]
FAILURE_CASES = [
    *("mismatch", "timeout", "leave", "leave_any", "lost", "abort", "cancelled_too_late"),
]
CASES = [
    *((VALUES, case) for case in VALUE_CASES),
    *((FAILURES, case) for case in FAILURE_CASES),
]
SEEDS = {PLAIN: "1", WATCHED: "2", BOUNDS: "3"}
FEW = {"FC_TEST_OPERATIONS": "30"}
# For each control, a case that reads and rewrites its word often enough to show the missing order.
CONTROLS = {
    "relax_stamp": "random",
    "relax_taken": "full",
    "relax_filled": "sizes",
    "relax_drained": "sizes",
    "relax_stamp_look": "random",
    "relax_taken_look": "full",
    "relax_filled_look": "sizes",
    "relax_drained_look": "sizes",
}


@pytest.mark.parametrize("build", SEEDS, ids=lambda build: build.name)
@pytest.mark.parametrize(("name", "case"), CASES)
def test_messages(name: str, case: str, build: Build) -> None:
    few = None if build is PLAIN else FEW
    programs.check(programs.get(name, build), case, SEEDS[build], environment=few)


@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control_is_reported(control: str) -> None:
    output = programs.run(
        programs.get(VALUES, WATCHED),
        *(CONTROLS[control], "1"),
        control=control,
        environment={**FEW, **programs.FIRST_RACE},
    ).stdout
    assert programs.races(output), f"ThreadSanitizer missed {control}"


@pytest.mark.release
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_messages(seed: int) -> None:
    many = {"FC_TEST_OPERATIONS": "1000"}
    for case in ("random", "any_source", "threads", "hand_over"):
        programs.check(programs.get(VALUES, PLAIN), case, str(seed), environment=many)

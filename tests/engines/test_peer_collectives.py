"""Collectives of processes that use each other's device memory: meetings, plans, and failures.

Under the execution shim, each rank a process. Order between processes is looked at, so a hazard
fails the case that it happens in.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import FIRST_RACE, SHIM, WATCHED

TEST = "shim_peer_collectives_test"
THREADS = "shim_peer_threads_test"


# What fits into a slot of so many bytes is one launch (engines/cuda/short.h).
SLOTS = {"in rounds": {}, "at once": {"FC_TEST_SLOT_BYTES": "65536"}}
WAYS = pytest.mark.parametrize("way", SLOTS)


@pytest.mark.parametrize(("case", "slot"), [("bits", ""), ("pulls", ""), ("bits", "2048")])
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_bits_of_every_operation(case: str, slot: str, seed: str) -> None:
    """2 to 4 ranks, two types, in one launch, in one round and in several, two streams."""
    environment = {"FC_TEST_SLOT_BYTES": slot} if slot else {}
    programs.check(programs.get(TEST, SHIM), case, seed, environment=environment)


@WAYS
@pytest.mark.parametrize("case", ["mismatch", "late", "abort", "death", "refused"])
def test_failure(case: str, way: str) -> None:
    """Recorded on every rank that lives, with NaN for results, and no hang."""
    programs.check(programs.get(TEST, SHIM), case, environment=SLOTS[way])


def test_a_mismatch_of_one_launch_and_several() -> None:
    """Three parts of 1000 floats fit, of 1001 they do not."""
    environment = {"FC_TEST_SLOT_BYTES": "12032"}
    programs.check(programs.get(TEST, SHIM), "mismatch", environment=environment)


def test_windows_that_cannot_be_mapped() -> None:
    programs.check(programs.get(TEST, SHIM), "unmapped")


@WAYS
@pytest.mark.parametrize("case", ["two", "one_queue", "graph"])
def test_streams_and_graphs(case: str, way: str) -> None:
    programs.check(programs.get(TEST, SHIM), case, "3", environment=SLOTS[way])


CONTROLS = {
    "one": ["skip_opening", "skip_closing", "weaken_publish", "weaken_wait"],
    "back_to_back": ["weaken_publish", "weaken_wait", "no_barrier", "one_slot"],
}


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize(
    ("case", "control"), [(case, control) for case in CONTROLS for control in CONTROLS[case]]
)
def test_negative_control_is_reported(case: str, control: str, seed: str) -> None:
    environment = SLOTS["at once" if case == "back_to_back" else "in rounds"]
    result = programs.run(
        programs.get(TEST, SHIM), case, seed, control=control, environment=environment
    )
    assert result.returncode != 0
    assert ": a hazard: " in result.stdout and "nothing orders" in result.stdout, result.stdout


def test_kernels_that_work_on_behind_a_failure_are_reported() -> None:
    """They use windows of ranks that have not come."""
    result = programs.run(programs.get(TEST, SHIM), "mismatch", control="work_on")
    assert result.returncode != 0
    assert ": a hazard: " in result.stdout and "nothing orders" in result.stdout, result.stdout


def test_a_window_that_is_freed_too_early_is_reported() -> None:
    result = programs.run(programs.get(TEST, SHIM), "one", control="leave_alone")
    assert result.returncode != 0
    assert "which another process has still mapped" in result.stdout, result.stdout


def test_a_meeting_that_does_not_compare_is_noticed() -> None:
    result = programs.run(programs.get(TEST, SHIM), "mismatch", control="blind_meeting")
    assert result.returncode != 0 and "WaitFailure::kMismatch" in result.stdout, result.stdout


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_bits_of_every_type(seed: str) -> None:
    """2 to 16 ranks, in one launch."""
    programs.check(programs.get(THREADS, SHIM), "types", seed)


@pytest.mark.parametrize("seed", ["1", "2"])
@pytest.mark.parametrize("case", ["rounds", "at_once", "mixed"])
def test_no_data_race_among_ranks_that_are_threads(case: str, seed: str) -> None:
    output = programs.check(programs.get(THREADS, WATCHED), case, seed)
    assert "ThreadSanitizer" not in output


RACES = {
    "rounds": ["weaken_publish", "weaken_wait", "skip_opening", "skip_closing"],
    "at_once": ["weaken_publish", "weaken_wait", "no_barrier", "one_slot"],
}


@pytest.mark.parametrize(
    ("case", "control"), [(case, control) for case in RACES for control in RACES[case]]
)
def test_a_race_is_reported(case: str, control: str) -> None:
    result = programs.run(
        programs.get(THREADS, WATCHED), case, "1", control=control, environment=FIRST_RACE
    )
    assert programs.races(result.stdout), f"ThreadSanitizer missed {control}:\n{result.stdout}"

"""Collectives of processes that use each other's device memory: meetings, plans, and failures.

Under the execution shim, each rank a process. Order between processes is looked at, so a hazard
fails the case that it happens in.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM

TEST = "shim_peer_collectives_test"


@pytest.mark.parametrize("case", ["bits", "pulls"])
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_bits_of_every_operation(case: str, seed: str) -> None:
    """2 to 4 ranks, two types, in one round and in several, two streams."""
    programs.check(programs.get(TEST, SHIM), case, seed)


@pytest.mark.parametrize("case", ["mismatch", "late", "abort", "death", "refused", "unmapped"])
def test_failure(case: str) -> None:
    """Recorded on every rank that lives, with NaN for results, and no hang."""
    programs.check(programs.get(TEST, SHIM), case)


@pytest.mark.parametrize("case", ["two", "one_queue", "graph"])
def test_streams_and_graphs(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case, "3")


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize(
    "control", ["skip_opening", "skip_closing", "weaken_publish", "weaken_wait"]
)
def test_negative_control_is_reported(control: str, seed: str) -> None:
    result = programs.run(programs.get(TEST, SHIM), "one", seed, control=control)
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

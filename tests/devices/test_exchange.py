"""Copies and reductions among the devices of one process, without a GPU: they run under the shim.

Every byte is compared inside the C++ program (tests/cpp/shim_exchange_test.cpp). Here it
runs with and without sanitizers. Runs without one kind of wait, or that trust a broken link, must
be reported.
"""

from __future__ import annotations

import pytest
from support import programs
from support.patience import ENDS
from support.programs import SHIM, SHIM_BOUNDS, SHIM_BOUNDS_ALL, WATCHED, WATCHED_ALL

TEST = "shim_exchange_test"
WAITS = ["drop_ready", "drop_staged", "drop_worked", "drop_finished", "drop_drained"]
LINKS = ["direct", "staged", "mixed", "broken", "repeated"]


@pytest.mark.parametrize("case", ["warm", "threads", "refused"])
def test_calls(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case)


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_bytes_of_every_operation(case: str, seed: str) -> None:
    """1 to 16 ranks, every dtype, lists of odd sizes and alignments, in place or not."""
    programs.check(programs.get(TEST, SHIM), case, seed)


@pytest.mark.parametrize(("case", "seed"), [("race", "1"), ("race", "2"), ("threads", "1")])
def test_no_data_race(case: str, seed: str) -> None:
    programs.check(programs.get(TEST, WATCHED), case, seed)


@pytest.mark.parametrize("control", WAITS)
def test_a_missing_wait_is_reported(control: str) -> None:
    """The shim compares the order of enqueued work, so timing does not matter."""
    result = programs.run(programs.get(TEST, SHIM), "race", control=control)
    assert result.returncode == 1 and "a hazard: " in result.stdout, result.stdout


@pytest.mark.parametrize(
    "control", [WAITS[0], *(pytest.param(wait, marks=pytest.mark.release) for wait in WAITS[1:])]
)
def test_a_missing_wait_is_a_data_race(control: str) -> None:
    watched = programs.get(TEST, WATCHED)
    result = programs.run(watched, "race", control=control, environment=programs.FIRST_RACE)
    assert programs.races(result.stdout), f"ThreadSanitizer missed {control}:\n{result.stdout}"


def test_a_broken_link_is_reported_where_the_probe_is_blind() -> None:
    result = programs.run(programs.get(TEST, SHIM), "broken", control="blind_probe")
    assert result.returncode == 1 and "of 4 ranks" in result.stdout, result.stdout


@pytest.mark.release
@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("seed", range(100, 110))
def test_bytes_with_more_seeds(case: str, seed: int) -> None:
    programs.check(programs.get(TEST, SHIM), case, str(seed))


@pytest.mark.release
@pytest.mark.parametrize("case", LINKS)
def test_no_data_race_on_any_link(case: str) -> None:
    programs.check(programs.get(TEST, WATCHED_ALL), case, "7", timeout=ENDS)


def test_in_bounds() -> None:
    check_bounds(SHIM_BOUNDS, "mixed")


@pytest.mark.release
@pytest.mark.parametrize("case", LINKS)
def test_in_bounds_with_every_kernel(case: str) -> None:
    check_bounds(SHIM_BOUNDS_ALL, case)


def check_bounds(build: programs.Build, case: str) -> None:
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # the shim keeps what streams may still use
    programs.check(programs.get(TEST, build), case, "8", environment=environment, timeout=ENDS)

"""Collectives of processes that use each other's device memory: meetings, plans, and failures.

Under the execution shim, each rank is a process. Order between processes is checked, so a hazard
fails its case.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM

TEST = "shim_peer_collectives_test"
SOAK = "shim_peer_soak_test"


# A message that fits into FC_TEST_SLOT_BYTES is one launch (engines/cuda/short.h).
ALL_WAYS = {
    "in rounds": {},
    "at once": {"FC_TEST_SLOT_BYTES": "65536"},
    # Some tensors, drawn per rank, lie in memory that the others have mapped.
    "in place": {"FC_TEST_POOL": "some"},
}
WAYS = pytest.mark.parametrize("way", ALL_WAYS)
MIXED = {"FC_TEST_SLOT_BYTES": "2048"}  # some in one launch, some in several


@pytest.mark.parametrize(
    ("case", "environment"),
    [
        *(("bits", {}), ("pulls", {}), ("bits", MIXED)),
        *(("bits", ALL_WAYS["in place"]), ("bits", {**ALL_WAYS["in place"], **MIXED})),
    ],
    ids=["pushed", "pulled", "mixed", "in place", "in place, mixed"],
)
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_bits_of_every_operation(case: str, environment: dict[str, str], seed: str) -> None:
    """2 to 4 ranks, two types, in one launch, in one round and in several, two streams."""
    programs.check(programs.get(TEST, SHIM), case, seed, environment=environment)


@WAYS
@pytest.mark.parametrize("case", ["mismatch", "late", "abort", "refused"])
def test_failure(case: str, way: str) -> None:
    """Each surviving rank records the failure, fills its results with NaN and does not hang."""
    programs.check(programs.get(TEST, SHIM), case, environment=ALL_WAYS[way])


@WAYS
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_a_rank_is_killed_in_any_phase(seed: str, way: str) -> None:
    programs.check(programs.get(TEST, SHIM), "death", seed, environment=ALL_WAYS[way])


@pytest.mark.parametrize("case", ["death_in_a_wait", "death_in_a_copy"])
@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_rank_is_killed_with_kernels_at_work(case: str, seed: str) -> None:
    """The survivors form a group of their own."""
    programs.check(programs.get(SOAK, SHIM), case, seed)


@pytest.mark.parametrize("ranks", ["2", "4"])
@pytest.mark.parametrize("way", [*ALL_WAYS, "mixed"])
def test_graphs_replayed_among_operations(way: str, ranks: str) -> None:
    environment = {"FC_TEST_RANKS": ranks, **(MIXED if way == "mixed" else ALL_WAYS[way])}
    programs.check(programs.get(SOAK, SHIM), "replays", "1", environment=environment)


@pytest.mark.parametrize("slot_bytes", ["0", "65536"])
def test_graphs_replayed_at_once(slot_bytes: str) -> None:
    """An error that says so, on the rank that did it; the others learn that it gave up."""
    for ranks in ("2", "3"):
        environment = {"FC_TEST_RANKS": ranks, "FC_TEST_SLOT_BYTES": slot_bytes}
        programs.check(programs.get(SOAK, SHIM), "replays_at_once", environment=environment)


def test_nothing_grows() -> None:
    """After the first operations of each kind, no memory of a device is allocated."""
    programs.check(programs.get(SOAK, SHIM), "growth", environment=MIXED)
    leak = {"FC_TEST_LEAK": "device"}
    programs.check_failure(programs.get(SOAK, SHIM), "growth", says="device: ", environment=leak)


@pytest.mark.parametrize(
    ("case", "environment"),
    [
        # Sizes known in pairs, which fit each other or do not.
        *(("pairs", {}), ("unlike_pairs", {})),
        # Windows that cannot be mapped, and the first way to map that all ranks have.
        *(("unmapped", {}), ("ways", {})),
        # Ranks with one launch and with several: three parts of 1000 floats fit, not of 1001.
        ("mismatch", {"FC_TEST_SLOT_BYTES": "12032"}),
    ],
)
def test_what_ranks_do_not_have_alike(case: str, environment: dict[str, str]) -> None:
    programs.check(programs.get(TEST, SHIM), case, environment=environment)


@pytest.mark.parametrize("windows", ["descriptor", "fabric"])
def test_bits_in_memory_of_the_driver(windows: str) -> None:
    """Windows and pools are allocated by functions of the driver (cuMemCreate)."""
    environment = {"FC_TEST_WINDOWS": windows, **ALL_WAYS["in place"], **MIXED}
    programs.check(programs.get(TEST, SHIM), "bits", "4", environment=environment)
    programs.check(programs.get(TEST, SHIM), "one", environment=environment)


@WAYS
@pytest.mark.parametrize("case", ["two", "one_queue"])
def test_streams(case: str, way: str) -> None:
    programs.check(programs.get(TEST, SHIM), case, "3", environment=ALL_WAYS[way])


CONTROLS = {
    ("one", "in rounds"): ["skip_opening", "skip_closing", "weaken_publish", "weaken_wait"],
    ("one", "in place"): ["skip_closing", "weaken_publish", "weaken_wait"],
    ("back_to_back", "at once"): ["weaken_publish", "weaken_wait", "no_barrier", "one_slot"],
}


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize(
    ("case", "way", "control"),
    [(*place, control) for place, controls in CONTROLS.items() for control in controls],
)
def test_negative_control_is_reported(case: str, way: str, control: str, seed: str) -> None:
    environment = {"FC_TEST_POOL": "all"} if way == "in place" else ALL_WAYS[way]
    program = programs.get(TEST, SHIM)
    output = programs.check_failure(
        program, case, seed, says=": a hazard: ", control=control, environment=environment
    )
    assert "nothing orders" in output, output


NOTICED = {
    # A rank skips the meetings of rounds that only others have.
    ("pairs", "leave_early"): "called different operations: ranks 0, 2 called all_reduce",
    # Meetings do not compare sizes or calls.
    ("unlike_pairs", "blind_meeting"): "WaitFailure::kMismatch",
    ("mismatch", "blind_meeting"): "WaitFailure::kMismatch",
    # After a failure, kernels use windows of ranks that have not come.
    ("mismatch", "work_on"): "nothing orders",
    # A window is freed too early.
    ("one", "leave_alone"): "which another process has still mapped",
}


@pytest.mark.parametrize(("case", "control"), NOTICED)
def test_negative_control_is_noticed(case: str, control: str) -> None:
    says = NOTICED[case, control]
    output = programs.check_failure(programs.get(TEST, SHIM), case, says=says, control=control)
    assert control != "work_on" or ": a hazard: " in output, output

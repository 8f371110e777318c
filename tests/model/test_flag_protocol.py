"""The flag protocol, the doorbell and the hand-over between threads, checked over all their states.

spin visits every state that a model has within its bounds. A model says at its head what it stands
for and what it leaves out. Negative controls leave out one rule of the protocol each: the verifier
must report them, or its silence would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import spin

PROTOCOL = "flag_protocol.pml"
DOORBELL = "doorbell.pml"
HAND_OVER = "hand_over.pml"


def kinds(*names: str) -> str:
    """What the operations are; the models know four."""
    return " ".join(f"-DKIND{number}={name}" for number, name in enumerate(names))


# FAULTS has one bit for each kind of fault, as flag_protocol.pml numbers them; by default all but a
# rank that never comes, which only timeouts make end.
EVERY_FAULT = "-DTIMEOUTS=1 -DFAULTS=62"
IN_PLACE = f"{kinds('DIRECT', 'ONE', 'DIRECT', 'DIRECT')} -DMODULUS=16"
RUNS = {
    "two": "-DN=2",
    "two_wrap": "-DN=2 -DANY_START",
    "two_timeouts": f"-DN=2 {EVERY_FAULT}",
    "two_in_place": f"-DN=2 {IN_PLACE}",
    "two_in_place_timeouts": f"-DN=2 {IN_PLACE} {EVERY_FAULT}",
    "three": "-DN=3",
    "three_broadcasts": f"-DN=3 {kinds('CAST', 'GATHER', 'CAST', 'TWO')}",
    "three_timeouts": "-DN=3 -DOPS=3 -DBLOCKS=1 -DTIMEOUTS=1 -DFAULTS=32 "
    + kinds("ONE", "CAST", "ONE", "ONE"),
    "three_in_place": "-DN=3 -DOPS=3 -DBLOCKS=1 " + kinds("ONE", "DIRECT", "ONE", "ONE"),
}
SMALL = [run for run in RUNS if run.startswith("two")]
OTHER_RUNS = {
    "doorbell_two": (DOORBELL, "-DN=2 -DROUNDS=3"),
    "doorbell_three": (DOORBELL, "-DN=3 -DROUNDS=1"),
    "doorbell_notice": (DOORBELL, "-DNOTICE -DBOUNDED"),
    "hand_over": (HAND_OVER, ""),
}
STUCK = "invalid end state"
# What is left out, and a word of the condition that must break.
CONTROLS = {
    "relaxed_publish": (PROTOCOL, "-DRELAXED_PUBLISH", "seen"),
    "late_read": (PROTOCOL, "-DLATE_READ", "stage"),
    "relaxed_wait": (PROTOCOL, "-DRELAXED_WAIT", "payload"),
    "wait_for_some": (PROTOCOL, "-DWAIT_SOME", "seen"),
    "missing_wait": (PROTOCOL, "-DMISSING_WAIT=2", "stage"),
    "one_payload_slot": (PROTOCOL, "-DPAYLOAD_SLOTS=1", "payload"),
    "one_header_slot": (PROTOCOL, "-DHEADER_SLOTS=1", "seen"),
    "one_stage_slot": (PROTOCOL, "-DSTAGE_SLOTS=1", "stage"),
    "one_result_slot": (PROTOCOL, "-DRESULT_SLOTS=1", "result"),
    "unsigned_compare": (PROTOCOL, "-DUNSIGNED_COMPARE", "seen"),
    "no_header_check": (PROTOCOL, "-DNO_HEADER_CHECK -DFAULTS=16", "payload"),
    "no_first_failed": (PROTOCOL, "-DN=3 -DNO_FIRST_FAILED -DFAULTS=8", "well"),
    "flags_before_evidence": (PROTOCOL, "-DFLAGS_FIRST", "well"),
    "poison_before_death": (PROTOCOL, "-DPOISON_FIRST", "found"),
    # Nothing is wrong at all, and a rank fails.
    "poison_before_exit": (
        PROTOCOL,
        f"-DN=3 -DPOISON_FIRST -DFAULTS=0 {kinds('CAST', 'CAST', 'CAST', 'CAST')}",
        "struck",
    ),
    "blame_the_messenger": (PROTOCOL, "-DN=3 -DBLAME_MESSENGER -DFAULTS=8", "blamed"),
    "no_second_look": (PROTOCOL, f"-DNO_SECOND_LOOK {IN_PLACE}", "tensor"),
    "late_without_timeouts": (PROTOCOL, "-DFAULTS=32", STUCK),
    "no_fence_in_publish": (DOORBELL, "-DNO_FENCE_IN_PUBLISH", STUCK),
    "no_fence_in_sleep": (DOORBELL, "-DNO_FENCE_IN_SLEEP", STUCK),
    "word_after_look": (DOORBELL, "-DWORD_AFTER_LOOK", STUCK),
    "notice_without_bound": (DOORBELL, "-DNOTICE", STUCK),
    "no_hand_over": (HAND_OVER, "-DNO_HAND_OVER", STUCK),
    "no_fence_in_hand_over": (HAND_OVER, "-DNO_FENCE", STUCK),
    "no_ring_in_finish": (HAND_OVER, "-DNO_FINISH_RING", STUCK),
}


@pytest.fixture(autouse=True)
def _spin() -> None:
    spin.need_spin()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], spin.Search]:
    """Search one of RUNS, once."""
    done: dict[str, spin.Search] = {}

    def search(run: str) -> spin.Search:
        if run not in done:
            folder = tmp_path_factory.mktemp(run)
            done[run] = spin.search(PROTOCOL, RUNS[run], folder, large=run not in SMALL)
        return done[run]

    return search


def check(name: str, result: spin.Search) -> None:
    print(f"{name}: {result.summary()}")
    assert result.errors == 0, f"{result.error}\n{result.trail}"
    assert result.complete, result.output


@pytest.mark.parametrize("run", SMALL)
def test_two_ranks(run: str, searched: Callable[[str], spin.Search]) -> None:
    check(run, searched(run))


@pytest.mark.slow
@pytest.mark.parametrize("run", [run for run in RUNS if run not in SMALL])
def test_three_ranks(run: str, searched: Callable[[str], spin.Search]) -> None:
    check(run, searched(run))


def test_no_statement_is_idle(searched: Callable[[str], spin.Search]) -> None:
    """What no run comes to would be a part of the model that checks nothing."""
    assert not set.intersection(*(searched(run).unreached for run in SMALL))


@pytest.mark.parametrize("run", ["two", "two_timeouts", "two_in_place"])
def test_every_run_ends(run: str, tmp_path: Path) -> None:
    check(run, spin.search(PROTOCOL, RUNS[run], tmp_path, cycles=True))


@pytest.mark.parametrize("run", OTHER_RUNS)
def test_no_wake_up_is_lost(run: str, tmp_path: Path) -> None:
    check(run, spin.search(*OTHER_RUNS[run], tmp_path))


@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control_is_reported(control: str, tmp_path: Path) -> None:
    model, macros, broken = CONTROLS[control]
    result = spin.search(model, macros, tmp_path)
    print(f"{control}: {result.summary()}")
    assert result.errors > 0, f"spin missed {macros}"
    assert broken in result.error, f"{result.error}\n{result.trail}"

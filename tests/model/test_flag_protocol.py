"""Models: flags, late calls, doorbell, hand-over, messages and their turn, calls over hosts.

spin visits every state that a model has within its bounds. A model says at its top what it stands
for and what it leaves out. A negative control leaves out one rule of the protocol, and spin must
report an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from support import spin

PROTOCOL = "flag_protocol.pml"
DOORBELL = "doorbell.pml"
HAND_OVER = "hand_over.pml"
LATE_CALL = "late_call.pml"
RING = "peer_ring.pml"
HOSTS = "host_exchange.pml"
TURN = "message_turn.pml"


def kinds(*names: str) -> str:
    """Return the macros for the kinds of a model's operations, of which there are up to four."""
    return " ".join(f"-DKIND{number}={name}" for number, name in enumerate(names))


# FAULTS has one bit per kind of fault, numbered in flag_protocol.pml. The model's default leaves
# out a rank that never comes, as only a timeout ends the wait for it.
EVERY_FAULT = "-DTIMEOUTS=1 -DFAULTS=62"
IN_PLACE = f"{kinds('DIRECT', 'ONE', 'DIRECT', 'DIRECT')} -DMODULUS=16"
# In an exchange a rank has 0 to 2 blocks, whatever the others have.
EXCHANGES = f"-DOPS=3 {kinds('TWO', 'EXCHANGE', 'EXCHANGE', 'ONE')}"
RUNS = {
    "two": "-DN=2",
    "two_wrap": "-DN=2 -DANY_START",
    "two_timeouts": f"-DN=2 {EVERY_FAULT}",
    "two_in_place": f"-DN=2 {IN_PLACE}",
    "two_in_place_timeouts": f"-DN=2 {IN_PLACE} {EVERY_FAULT}",
    "two_fused": f"-DN=2 {kinds('TWO', 'FUSED', 'ONE', 'FUSED')}",
    "two_fused_first": f"-DN=2 {kinds('FUSED', 'CAST', 'FUSED', 'GATHER')}",
    "two_exchange": f"-DN=2 {EXCHANGES}",
    "two_exchange_timeouts": f"-DN=2 -DOPS=2 {EVERY_FAULT} "
    + kinds("EXCHANGE", "CAST", "ONE", "ONE"),
    "two_exchange_slots": f"-DN=2 -DFAULTS=0 {kinds('EXCHANGE', 'ONE', 'EXCHANGE', 'EXCHANGE')}",
    "two_exchange_among_others": "-DN=2 -DFAULTS=0 -DMODULUS=16 "
    + kinds("FUSED", "EXCHANGE", "DIRECT", "EXCHANGE"),
    "two_exchange_first": f"-DN=2 -DFAULTS=0 {kinds('EXCHANGE', 'FUSED', 'EXCHANGE', 'GATHER')}",
    "three": "-DN=3",
    "three_broadcasts": f"-DN=3 {kinds('CAST', 'GATHER', 'CAST', 'TWO')}",
    "three_timeouts": "-DN=3 -DOPS=3 -DBLOCKS=1 -DTIMEOUTS=1 -DFAULTS=32 "
    + kinds("ONE", "CAST", "ONE", "ONE"),
    "three_in_place": "-DN=3 -DOPS=3 -DBLOCKS=1 " + kinds("ONE", "DIRECT", "ONE", "ONE"),
    "three_fused": "-DN=3 -DOPS=3 -DBLOCKS=1 " + kinds("TWO", "FUSED", "TWO", "ONE"),
    "three_exchange": "-DN=3 -DOPS=3 -DBLOCKS=1 -DFAULTS=0 "
    + kinds("CAST", "EXCHANGE", "EXCHANGE", "ONE"),
    "three_exchange_faults": "-DN=3 -DOPS=2 -DBLOCKS=1 -DMOST_BLOCKS=1 "
    + kinds("EXCHANGE", "CAST", "ONE", "ONE"),
}
MEETS = f"-DOPS=3 {kinds('MEET', 'MEET', 'SHORT')}"
HOSTS_RUNS = {
    "hosts_short": f"-DOPS=3 {kinds('SHORT', 'SHORT', 'MEET')}",
    "hosts_meet": MEETS,
    "hosts_long": f"-DOPS=1 {kinds('LONG')}",
    "hosts_long_first": f"-DCHUNKS=1 -DOPS=3 {kinds('LONG', 'SHORT', 'MEET')}",
    "hosts_long_last": f"-DCHUNKS=1 {kinds('SHORT', 'LONG')}",
    "hosts_unlike": "-DUNLIKE -DCHUNKS=1",
    "hosts_unlike_long": "-DUNLIKE -DOTHER=LONGER -DCHUNKS=1",
    "hosts_unlike_later": f"-DUNLIKE -DCHUNKS=1 -DOPS=3 {kinds('SHORT', 'MEET')}",
}
SMALL = [run for run in RUNS if run.startswith("two")]
OTHER_RUNS = {
    "doorbell_two": (DOORBELL, "-DN=2 -DROUNDS=3"),
    "doorbell_three": (DOORBELL, "-DN=3 -DROUNDS=1"),
    "doorbell_notice": (DOORBELL, "-DNOTICE -DBOUNDED"),
    "hand_over": (HAND_OVER, ""),
    "late_call_two": (LATE_CALL, "-DN=2 -DOPS=3"),
    "late_call_three": (LATE_CALL, "-DN=3 -DOPS=2"),
    "ring_all_at_once": (RING, ""),
    "ring_in_turn": (RING, "-DIN_TURN"),
    "ring_all_long": (RING, "-DLONGS=15 -DMESSAGES=4 -DPIECES=2"),
    "ring_none_long": (RING, "-DLONGS=0"),
    "ring_wrapping": (RING, "-DLONGS=5 -DFIRST=6 -DMODULUS=8"),
    "message_turn": (TURN, ""),
    **{run: (HOSTS, macros) for run, macros in HOSTS_RUNS.items()},
}
STUCK = "invalid end state"
# Model, macros that leave a rule out, and a word of the condition that must break.
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
    # With the slots of TWO a write in step 0 would be safe.
    "fused_slot_in_step_0": (
        PROTOCOL,
        f"-DEARLY=FUSED -DFAULTS=0 {kinds('TWO', 'FUSED', 'TWO', 'FUSED')}",
        "result",
    ),
    "slot_in_step_0_behind_fused": (
        PROTOCOL,
        f"-DEARLY=TWO -DFAULTS=0 {kinds('FUSED', 'TWO', 'ONE', 'ONE')}",
        "result",
    ),
    "unsigned_compare": (PROTOCOL, "-DUNSIGNED_COMPARE", "seen"),
    "no_header_check": (PROTOCOL, "-DNO_HEADER_CHECK -DFAULTS=16", "payload"),
    "no_first_failed": (PROTOCOL, "-DN=3 -DNO_FIRST_FAILED -DFAULTS=8", "well"),
    "flags_before_evidence": (PROTOCOL, "-DFLAGS_FIRST", "well"),
    "poison_before_death": (PROTOCOL, "-DPOISON_FIRST", "found"),
    # A rank fails although no fault strikes.
    "poison_before_exit": (
        PROTOCOL,
        f"-DN=3 -DPOISON_FIRST -DFAULTS=0 {kinds('CAST', 'CAST', 'CAST', 'CAST')}",
        "struck",
    ),
    "blame_the_messenger": (PROTOCOL, "-DN=3 -DBLAME_MESSENGER -DFAULTS=8", "blamed"),
    "no_second_look": (PROTOCOL, f"-DNO_SECOND_LOOK {IN_PLACE}", "tensor"),
    "own_number_of_blocks": (PROTOCOL, f"-DOWN_BLOCKS {EXCHANGES}", "k>sent"),
    "one_table_slot": (PROTOCOL, f"-DTABLE_SLOTS=1 {EXCHANGES}", "table"),
    "tables_behind_a_wait_for_one": (PROTOCOL, f"-DN=3 -DWAIT_FOR_NEXT {EXCHANGES}", "table"),
    "base_before_it_is_agreed": (PROTOCOL, f"-DBASE_AT_ISSUE {EXCHANGES}", "bases"),
    "late_without_timeouts": (PROTOCOL, "-DFAULTS=32", STUCK),
    "no_fence_in_publish": (DOORBELL, "-DNO_FENCE_IN_PUBLISH", STUCK),
    "no_fence_in_sleep": (DOORBELL, "-DNO_FENCE_IN_SLEEP", STUCK),
    "word_after_look": (DOORBELL, "-DWORD_AFTER_LOOK", STUCK),
    "notice_without_bound": (DOORBELL, "-DNOTICE", STUCK),
    "no_first_look": (LATE_CALL, "-DNO_FIRST_LOOK", "too_late"),
    "look_after_step_0": (LATE_CALL, "-DLOOK_AFTER_STEP_0", "well"),
    "error_before_the_mark": (LATE_CALL, "-DERROR_FIRST", "too_late"),
    "no_hand_over": (HAND_OVER, "-DNO_HAND_OVER", STUCK),
    "no_fence_in_hand_over": (HAND_OVER, "-DNO_FENCE", STUCK),
    "no_ring_in_finish": (HAND_OVER, "-DNO_FINISH_RING", STUCK),
    "stamp_first": (RING, "-DSTAMP_FIRST", "number"),
    "taken_first": (RING, "-DTAKEN_FIRST", "number"),
    "filled_first": (RING, "-DFILLED_FIRST", "piece"),
    "drained_first": (RING, "-DDRAINED_FIRST", "piece"),
    "blind_post": (RING, "-DBLIND_POST", STUCK),
    "blind_fill": (RING, "-DBLIND_FILL", "piece"),
    "blind_grant": (RING, "-DBLIND_GRANT -DLONGS=15", STUCK),
    "bare_grants": (RING, "-DBARE_GRANTS -DLONGS=15", "piece"),
    "no_strays": (RING, "-DNO_STRAYS -DIN_TURN", STUCK),
    "look_first": (TURN, "-DLOOK_FIRST", "receive==number"),
    "count_first": (TURN, "-DCOUNT_FIRST", "receive==number"),
    "no_wait_for_count": (TURN, "-DNO_WAIT", "receive==number"),
    "drain_first": (TURN, "-DDRAIN_FIRST", "receive==number"),
    "count_posts": (TURN, "-DCOUNT_POSTS", "receive==number"),
    "leave_posted": (TURN, "-DLEAVE_POSTED", STUCK),
    "one_envelope": (HOSTS, f"-DONE_ENVELOPE {MEETS}", "letters_expected"),
    "late_envelope": (HOSTS, f"-DLATE_LETTER {MEETS}", "letters_expected"),
    "no_compare": (HOSTS, "-DNO_COMPARE -DUNLIKE -DOTHER=LONGER -DCHUNKS=1", "call_of"),
    "one_mail": (HOSTS, "-DONE_MAIL -DUNLIKE -DCHUNKS=1", "call_of"),
    "no_sent_wait": (HOSTS, f"-DNO_SENT_WAIT -DOPS=1 {kinds('LONG')}", "part_in"),
    "post_early": (HOSTS, f"-DPOST_EARLY -DOPS=1 {kinds('LONG')}", "part_in"),
    "no_order": (HOSTS, f"-DNO_ORDER -DOPS=1 {kinds('LONG')}", "step_of"),
}
# Runs that are searched once more, for cycles: without any, every run ends.
ENDING = {
    f"{run}_ends": RUNS[run] for run in ("two", "two_timeouts", "two_in_place", "two_exchange")
}
# For less than a million states the optimizer takes longer than it saves.
LARGE = (*(run for run in RUNS if run not in SMALL), "ring_all_long", "hosts_long")
SEARCHES: dict[str, tuple[str, str, dict[str, bool]]] = {
    **{run: (PROTOCOL, macros, {"large": run in LARGE}) for run, macros in RUNS.items()},
    **{run: (PROTOCOL, macros, {"cycles": True}) for run, macros in ENDING.items()},
    **{
        run: (model, macros, {"large": run in LARGE}) for run, (model, macros) in OTHER_RUNS.items()
    },
    **{
        control: (model, macros, {"reverse": model == HOSTS})
        for control, (model, macros, _) in CONTROLS.items()
    },
}
Searched = Callable[[str], spin.Search]


@pytest.fixture(scope="module")
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Searched]:
    """Yield a function that waits for a search, by its name, and returns what it found.

    The searches of all chosen tests start here, as many at a time as there are cores.
    """
    spin.need_spin()
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    started: dict[str, Future[spin.Search]] = {}

    def start(name: str) -> Future[spin.Search]:
        if name not in started:
            model, macros, options = SEARCHES[name]
            folder = tmp_path_factory.mktemp(name)
            started[name] = pool.submit(spin.search, model, macros, folder, **options)
        return started[name]

    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module:
            for name in item.callspec.params.values() if hasattr(item, "callspec") else ():
                start(str(name))
    yield lambda name: start(name).result()
    pool.shutdown(cancel_futures=True)


def runs() -> Iterator[object]:
    """Yield the runs of complete models; those of the protocol with three ranks take long."""
    for run in (*RUNS, *ENDING, *OTHER_RUNS):
        large = run in RUNS and run not in SMALL
        yield pytest.param(run, marks=(pytest.mark.release,) if large else ())


@pytest.mark.parametrize("run", runs())
def test_nothing_goes_wrong_in_any_state(run: str, searched: Searched) -> None:
    result = searched(run)
    print(f"{run}: {result.summary()}")
    assert result.errors == 0, f"{result.error}\n{result.trail}"
    assert result.complete, result.output


def test_no_statement_is_idle(searched: Searched) -> None:
    """A statement that no run reaches would be a part of the model that checks nothing."""
    assert not set.intersection(*(searched(run).unreached for run in SMALL))
    assert not searched("ring_all_at_once").unreached
    assert not searched("message_turn").unreached


@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control_is_reported(control: str, searched: Searched) -> None:
    _, macros, broken = CONTROLS[control]
    result = searched(control)
    print(f"{control}: {result.summary()}")
    assert result.errors > 0, f"spin missed {macros}"
    assert broken in result.error, f"{result.error}\n{result.trail}"

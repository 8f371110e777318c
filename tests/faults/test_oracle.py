"""The oracle accepts what is right, and nothing else: every test plants one wrong thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults import fused_operations, runs
from faults.errors_oracle import SLACK
from faults.expect import frontier
from faults.oracle import judge
from faults.report import EXTRA, Result, Run, Told
from faults.runs import HELD, PID, failing, judged, played, result, setting
from faults.runs import with_result as _set
from faults.schedule import Fault, Gradients, Op, Schedule

VICTIM, AT = 1, 2
OPS = (
    Op(0, "all_reduce", count=5),
    Op(1, "all_reduce", count=6),
    Op(0, "broadcast", count=7, root=0),
    Op(0, "barrier"),
    Op(1, "barrier"),
)


def schedule(fault: Fault, asynchronous: bool = False, timeout: float = 60.0) -> Schedule:
    """Return a schedule of three ranks and two groups; the victim is not in the second."""
    return runs.schedule(OPS, ((0, 1, 2), (0, 2)), fault, lambda *_: asynchronous, timeout)


def lost(
    sequence: int = 1, peer: int = VICTIM, kind: str = "PeerLostError", text: str = ""
) -> Told:
    blamed = None if kind == "CollectiveMismatchError" else peer
    return Told(kind, text or f"rank {VICTIM} (pid {PID}) is to blame", blamed, sequence)


def calls(own: str, of_victim: str) -> str:
    return f"rank 0 called {own}(), sequence 1; rank {VICTIM} called {of_victim}(), sequence 1"


def killed() -> Run:
    """Operation 2 is the second one of group 0; group 1 goes on without the victim."""
    plan = schedule(Fault("kill", VICTIM, AT))
    return played(plan, failing(lost(), {0: (2, 3), 2: (2, 3)}))


def mismatched() -> Run:
    plan = schedule(Fault("mismatch", VICTIM, AT, other=Op(0, "barrier")))
    told = Told("CollectiveMismatchError", calls("broadcast", "barrier"), None, 1)
    return played(plan, failing(told, dict.fromkeys(range(3), (2, 3))))


def late() -> Run:
    plan = schedule(Fault("delay past timeout", VICTIM, AT, seconds=2.0), timeout=0.5)
    told = lost(kind="CollectiveTimeoutError")
    run = played(plan, failing(told, {0: (2, 3), 2: (2, 3)}))
    for rank in (0, 2):
        for one in run.ended[rank].results[-3:]:
            one.ended = max(one.issued, 2.51)
    run.ended[VICTIM].resumed = 4.0
    for number, op in enumerate((2, 3)):  # they start after the others have raised
        last = result(run, VICTIM, op)
        last.issued, last.ended, last.error = 4.0 + number / 5, 4.1 + number / 5, told
    return run


def left() -> Run:
    plan = schedule(Fault("leave", VICTIM, AT))
    told = lost(kind="PeerLeftError")
    return played(plan, failing(told, {0: (2, 3), 2: (2, 3)}))


def undisturbed() -> Run:
    return played(schedule(Fault("delay", VICTIM, AT, seconds=0.1)), {})


RIGHT = [killed, mismatched, late, left, undisturbed]


@pytest.mark.parametrize("make", RIGHT)
def test_what_is_right_passes(make: Callable[[], Run]) -> None:
    assert judge(make()) == []


def _too_early(run: Run) -> None:
    for rank in (0, 2):
        for one in run.ended[rank].results:
            one.ended = one.issued + 0.2


def _far_apart(run: Run) -> None:
    plan = replace(run.schedule, fault=Fault("kill in flight", VICTIM, 0))
    run.schedule = plan
    for one in run.ended[0].results:
        one.error = None
    for op in (0, 2, 3):
        result(run, 2, op).error = lost(sequence=0)


WRONG: dict[str, tuple[Callable[[], Run], Callable[[Run], object], str]] = {
    "a rank hangs": (killed, lambda run: run.hung.append(2), "do not answer"),
    "a rank says nothing": (killed, lambda run: run.ended.pop(2), "gave no answer"),
    "a survivor dies": (killed, lambda run: run.exits.update({2: -11}), "died with status -11"),
    "the victim lives": (killed, lambda run: run.exits.update({VICTIM: 0}), "ended with status 0"),
    "an error outside": (
        killed, setting(lambda run: run.ended[0], trouble="Traceback"), "outside of any operation",
    ),
    "no new group": (
        killed, setting(lambda run: run.fresh[0], trouble="a wrong all_reduce"), "new group",
    ),
    "memory of the dead": (
        killed, setting(lambda run: run, dead_segments=HELD.segments), "maps memory",
    ),
    "an open socket": (
        killed,
        setting(lambda run: run.fresh[0], resources=replace(HELD, sockets=1)),
        "sockets open",
    ),
    "an operation left out": (killed, lambda run: run.ended[0].results.pop(), "was to issue"),
    "wrong bits before": (killed, _set(0, 0, right=False), "a wrong result"),
    "wrong bits elsewhere": (killed, _set(0, 4, right=False), "a wrong result"),
    "no error": (killed, _set(2, 3, error=None), "was to fail"),
    "an error before": (killed, _set(0, 0, error=lost(0)), "was to end well"),
    "an error elsewhere": (killed, _set(0, 4, error=lost(1)), "was to end well"),
    "another type": (killed, _set(0, 2, error=lost(kind="RuntimeError")), "not one of"),
    "another rank": (killed, _set(0, 2, error=lost(peer=2)), "not one of"),
    "another process": (killed, _set(0, 2, error=Told("PeerLostError", "", VICTIM, 1)), "name"),
    "another operation": (killed, _set(0, 2, error=lost(sequence=3)), "another operation"),
    "two causes": (killed, _set(0, 3, error=Told("PeerLostError", "", VICTIM, 9)), "before it"),
    "slow news": (killed, _set(0, 2, ended=9.0 + SLACK), "late"),
    "out of step": (killed, _far_apart, "too far apart"),
    "a timeout, not a mismatch": (
        mismatched, _set(0, 2, error=lost(kind="CollectiveTimeoutError")), "not one of",
    ),
    "a mismatch that writes": (mismatched, _set(0, 2, untouched=False), "touched"),
    "a mismatch without the call": (
        mismatched, _set(0, 2, error=Told("CollectiveMismatchError", "", None, 1)), "tell",
    ),
    "a mismatch on some": (mismatched, _set(VICTIM, 2, error=None), "was to fail"),
    "an early timeout": (late, _too_early, "before the timeout"),
    "well after another has raised": (
        late, _set(VICTIM, 2, error=None), "after another rank had raised",
    ),
    "a late timeout": (late, _set(0, 2, ended=9.0 + SLACK), "late"),
    "a timeout that blames another": (
        late, _set(0, 2, error=Told("CollectiveTimeoutError", "", 2, 1)), "not one of",
    ),
    "a mismatch with another call of the victim's": (
        mismatched,
        _set(0, 2, error=lost(kind="CollectiveMismatchError", text=calls("broadcast", "reduce"))),
        "tell",
    ),
    "a mismatch with one call": (
        mismatched,
        _set(0, 2, error=lost(kind="CollectiveMismatchError", text="rank 1 called barrier()")),
        "tell",
    ),
    "a word of another engine": (
        killed, _set(0, 2, error=lost(text=f"Gloo: (pid {PID})")), "speaks of",
    ),
    "a stop of one second": (undisturbed, _set(0, 2, error=lost()), "was to end well"),
    "lost, not left": (left, _set(0, 2, error=lost()), "not one of"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    make, spoil, word = WRONG[name]
    assert word in str(judged(make, spoil))


def test_a_call_too_many_is_no_operation_of_the_schedule() -> None:
    plan = schedule(Fault("extra", VICTIM, len(OPS), other=Op(0, "barrier")))
    run = played(plan, {})
    told = Told("PeerLeftError", "", 2, 2 + 1)
    run.ended[VICTIM].results.append(Result(EXTRA, 0, 5.0, 5.0, 5.1, told))
    assert judge(run) == []
    run.ended[VICTIM].results[-1].error = None
    assert "was to fail" in str(judge(run))


def test_pending_operations_of_the_victim_may_end_either_way() -> None:
    assert frontier(schedule(Fault()), VICTIM, 3, 0) == (2, 2)
    assert frontier(schedule(Fault(), asynchronous=True), VICTIM, 3, 0) == (0, 2)
    plan = schedule(Fault("kill", VICTIM, 3), asynchronous=True)
    told = lost(sequence=0)
    for failed in ((0, 2, 3), (3,)):
        first = replace(told, sequence=3 - len(failed))
        assert judge(played(plan, failing(first, {0: failed, 2: failed}))) == []


@pytest.mark.parametrize(("count", "numbers"), [(131_072, 4), (131_000, 1)])
@pytest.mark.parametrize("failed", [1, 2])
def test_a_list_of_large_tensors_takes_a_number_for_each(
    count: int, numbers: int, failed: int
) -> None:
    """1 MiB in four tensors is large; a failure in a list has any of its numbers."""
    kinds = ("all_gather_coalesced", "all_reduce_coalesced", "barrier")
    ops = [Op(0, kind, "float64", count if kind != "barrier" else 0) for kind in kinds]
    plan = runs.schedule(ops, ((0, 1, 2),), Fault("kill", VICTIM, failed))
    rest = range(failed, 3)
    right = range(failed * numbers, failed * numbers + (numbers if failed == 1 else 1))
    for sequence in range(10):
        wrong = judge(played(plan, failing(lost(sequence), {0: rest, 2: rest})))
        assert (wrong == []) == (sequence in right), (sequence, wrong)
        assert all("another operation" in text for text in wrong)


def test_what_was_pending_when_ctrl_c_came_fails_with_the_group() -> None:
    plan = schedule(Fault("interrupt", VICTIM, 3, after=0.1, helper=0), asynchronous=True)
    steps = list(plan.steps)
    steps[VICTIM] = tuple(replace(step, asynchronous=step.op < 3) for step in steps[VICTIM])
    poisoned = Told("GroupPoisonedError", "rank 1 was interrupted", None, 2)
    errors = {(VICTIM, 2): poisoned, (VICTIM, 3): Told("KeyboardInterrupt", "")}
    errors |= {(rank, 3): replace(poisoned, peer=VICTIM) for rank in (0, 2)}
    run = played(replace(plan, steps=tuple(steps)), errors)
    result(run, VICTIM, 3).interrupted = 3.05
    assert judge(run) == []


def test_what_a_call_finds_out_is_judged_as_what_it_writes() -> None:
    one = Gradients((("float32", (3,)), ("bfloat16", ())))
    _, found = fused_operations.right(one, 5, (0, 2), True)
    found_inf, _, parts = found
    assert not fused_operations.trouble(found, found)
    for wrong in (found[:2], [1 - found_inf, *found[1:]], [*found[:2], parts + 1e-9]):
        assert fused_operations.trouble(wrong, found)

"""The oracle accepts what is right, and nothing else: every test plants one wrong thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults import fused_operations
from faults.errors_oracle import SLACK
from faults.expect import frontier
from faults.oracle import judge
from faults.report import EXTRA, Ended, Fresh, Now, Resources, Result, Run, Told
from faults.schedule import DEADLY, Fault, Gradients, Op, Schedule, Step

SIZE, VICTIM, AT, PID = 3, 1, 2, 77
OPS = (
    Op(0, "all_reduce", count=5),
    Op(1, "all_reduce", count=6),
    Op(0, "broadcast", count=7, root=0),
    Op(0, "barrier"),
    Op(1, "barrier"),
)
GROUPS = ((0, 1, 2), (0, 2))
HELD = Resources(20, 2, frozenset({1}))


def schedule(fault: Fault, asynchronous: bool = False, timeout: float = 60.0) -> Schedule:
    """Return a schedule of three ranks and two groups; the victim is not in the second."""
    steps = []
    for rank in range(SIZE):
        mine = [op for op in range(len(OPS)) if rank in GROUPS[OPS[op].group]]
        last = mine[-1]
        steps.append(
            tuple(Step(op, asynchronous, False, tuple(mine) if op == last else ()) for op in mine)
        )
    return Schedule(1, SIZE, "default", GROUPS, OPS, tuple(steps), fault, timeout)


def played(plan: Schedule, errors: dict[tuple[int, int], Told]) -> Run:
    """Return a run in which all is well except what is in ``errors``, by rank and operation."""
    run = Run(plan, struck=Now(2.0, pid=PID))
    fault = plan.fault
    for rank in range(SIZE):
        if rank == fault.victim and fault.kind in DEADLY:
            run.exits[rank] = -9
            continue
        results = []
        for step in plan.steps[rank]:
            if rank == fault.victim and fault.kind == "leave" and step.op >= fault.at:
                continue
            start = float(step.op)
            results.append(
                Result(step.op, OPS[step.op].group, start, start, start + 0.1,
                       errors.get((rank, step.op)))
            )  # fmt: skip
        run.ended[rank] = Ended(results, left=2.0)
        run.fresh[rank] = Fresh("", 0.1, HELD)
    return run


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
    return played(plan, {(rank, op): lost() for rank in (0, 2) for op in (2, 3)})


def mismatched() -> Run:
    plan = schedule(Fault("mismatch", VICTIM, AT, other=Op(0, "barrier")))
    told = Told("CollectiveMismatchError", calls("broadcast", "barrier"), None, 1)
    return played(plan, {(rank, op): told for rank in range(SIZE) for op in (2, 3)})


def late() -> Run:
    plan = schedule(Fault("delay past timeout", VICTIM, AT, seconds=2.0), timeout=0.5)
    told = lost(kind="CollectiveTimeoutError")
    run = played(plan, {(rank, op): told for rank in (0, 2) for op in (2, 3)})
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
    return played(plan, {(rank, op): told for rank in (0, 2) for op in (2, 3)})


def undisturbed() -> Run:
    return played(schedule(Fault("delay", VICTIM, AT, seconds=0.1)), {})


RIGHT = [killed, mismatched, late, left, undisturbed]


@pytest.mark.parametrize("make", RIGHT)
def test_what_is_right_passes(make: Callable[[], Run]) -> None:
    assert judge(make()) == []


def result(run: Run, rank: int, op: int) -> Result:
    return next(result for result in run.ended[rank].results if result.op == op)


def _set(rank: int, op: int, **changes: object) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        for name, value in changes.items():
            setattr(result(run, rank, op), name, value)

    return change


def _hang(run: Run) -> None:
    run.hung = [2]


def _silent(run: Run) -> None:
    del run.ended[2]


def _died(run: Run) -> None:
    del run.ended[2]
    run.exits[2] = -11


def _survived(run: Run) -> None:
    run.exits[VICTIM] = 0


def _trouble(run: Run) -> None:
    run.ended[0].trouble = "Traceback"


def _no_new_group(run: Run) -> None:
    run.fresh[0].trouble = "a wrong all_reduce"


def _mapped(run: Run) -> None:
    run.dead_segments = frozenset({9})
    run.fresh[0].resources = replace(HELD, segments=frozenset({1, 9}))


def _listening(run: Run) -> None:
    run.fresh[0].resources = replace(HELD, sockets=1)


def _left_out(run: Run) -> None:
    run.ended[0].results.pop()


def _too_early(run: Run) -> None:
    for rank in (0, 2):
        for one in run.ended[rank].results:
            one.ended = one.issued + 0.2


def _far_apart(run: Run) -> None:
    plan = replace(run.schedule, fault=Fault("kill in flight", VICTIM, 0))
    run.schedule = plan
    for one in run.ended[0].results:
        one.error = None
    result(run, 2, 0).error = lost(sequence=0)
    result(run, 2, 2).error = lost(sequence=0)
    result(run, 2, 3).error = lost(sequence=0)


WRONG = {
    "a rank hangs": (killed, _hang, "do not answer"),
    "a rank says nothing": (killed, _silent, "gave no answer"),
    "a survivor dies": (killed, _died, "died with status -11"),
    "the victim lives": (killed, _survived, "ended with status 0"),
    "an error outside": (killed, _trouble, "outside of any operation"),
    "no new group": (killed, _no_new_group, "new group"),
    "memory of the dead": (killed, _mapped, "maps memory"),
    "an open socket": (killed, _listening, "sockets open"),
    "an operation left out": (killed, _left_out, "was to issue"),
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
    run = make()
    spoil(run)
    assert any(word in text for text in judge(run)), judge(run)


def test_a_call_too_many_is_no_operation_of_the_schedule() -> None:
    plan = schedule(Fault("extra", VICTIM, len(OPS), other=Op(0, "barrier")))
    run = played(plan, {})
    told = Told("PeerLeftError", "", 2, 2 + 1)
    run.ended[VICTIM].results.append(Result(EXTRA, 0, 5.0, 5.0, 5.1, told))
    assert judge(run) == []
    run.ended[VICTIM].results[-1].error = None
    assert any("was to fail" in text for text in judge(run))


def test_pending_operations_of_the_victim_may_end_either_way() -> None:
    assert frontier(schedule(Fault()), VICTIM, 3, 0) == (2, 2)
    assert frontier(schedule(Fault(), asynchronous=True), VICTIM, 3, 0) == (0, 2)
    plan = schedule(Fault("kill", VICTIM, 3), asynchronous=True)
    told = lost(sequence=0)
    for failed in ((0, 2, 3), (3,)):
        first = replace(told, sequence=3 - len(failed))
        errors = {(rank, op): first for rank in (0, 2) for op in failed}
        assert judge(played(plan, errors)) == []


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

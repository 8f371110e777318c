"""The oracle of sends and receives: what must fail, what must arrive, and what chance decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults.oracle import judge
from faults.report import EXTRA, Ended, Fresh, Now, Resources, Result, Run, Told
from faults.schedule import DEADLY, Fault, Op, Schedule, Step

PID = 77
SHORT, LONG = 10, 5000  # elements
OPS = (
    Op(0, "message", count=SHORT, source=1, root=0),
    Op(0, "all_reduce", count=5),
    Op(0, "message", count=SHORT, source=1, root=0),
    Op(0, "message", count=LONG, source=0, root=1),
    Op(0, "message", count=LONG, source=2, root=0),
    Op(0, "any_source", count=SHORT, root=2),
    Op(0, "batch", count=SHORT),
    Op(0, "barrier"),
)
GROUPS = ((0, 1, 2),)


def schedule(
    fault: Fault, asynchronous: tuple[int, ...] = (), ops: tuple[Op, ...] = OPS
) -> Schedule:
    """Return a schedule of three ranks; 1 is the victim. Others wait for some only at the end."""
    plan = Schedule(1, 3, "default", GROUPS, ops, ((),) * 3, fault)
    steps = tuple(
        tuple(
            Step(op, rank != 1 and op in asynchronous, False)
            for op in range(len(ops))
            if rank in plan.players(op)
        )
        for rank in range(3)
    )
    ended = [tuple(step.op for step in each if step.asynchronous) for each in steps]
    pairs = zip(steps, ended, strict=True)
    waiting = tuple((*each[:-1], replace(each[-1], then_wait=ops)) for each, ops in pairs)
    return replace(plan, steps=waiting)


def played(plan: Schedule, failed: dict[int, tuple[int, ...]], told: Told) -> Run:
    """Return a run in which these operations of each rank fail, and all others end well."""
    run, fault = Run(plan, struck=Now(2.0, pid=PID)), plan.fault
    for rank, steps in enumerate(plan.steps):
        if rank == fault.victim and fault.kind in DEADLY:
            run.exits[rank] = -9
            continue
        results = []
        for step in steps:
            if rank == fault.victim and fault.kind == "leave" and step.op >= fault.at:
                continue
            waited = float(len(OPS) if step.asynchronous else step.op)
            error = told if step.op in failed.get(rank, ()) else None
            results.append(Result(step.op, 0, float(step.op), waited, waited + 0.1, error))
        run.ended[rank] = Ended(results, left=20.0)
        run.fresh[rank] = Fresh("", 0.1, Resources(20, 2, frozenset({1})))
    return run


LOST = Told(
    "PeerLostError", f"[rank 0 of 3, peer 1, recv, sequence 1] rank 1 (pid {PID}) died", 1, 1
)
MISFIT = Told(
    "CollectiveMismatchError",
    "[rank 0 of 3, peer 1, recv, sequence 1] rank 0 called recv(); rank 1 called send()",
    1,
    1,
)


def killed(asynchronous: tuple[int, ...] = ()) -> Run:
    """The victim dies before operation 3: what it has sent is received, and all else fails."""
    plan = schedule(Fault("kill", 1, 3), asynchronous)
    return played(plan, {0: (3, 4, 5, 6, 7), 2: (4, 5, 6, 7)}, LOST)


def departed() -> Run:
    """The victim leaves before operation 3: the same."""
    left = f"[rank 0 of 3, peer 1, recv, sequence 1] rank 1 (pid {PID}) destroyed its process group"
    told = Told("PeerLeftError", left, 1, 1)
    plan = schedule(Fault("leave", 1, 3))
    return played(plan, {0: (3, 4, 5, 6, 7), 2: (4, 5, 6, 7)}, told)


def misfit() -> Run:
    """What rank 1 sends in operation 2 is longer than rank 0 expects, and short."""
    plan = schedule(Fault("misfit", 1, 2, other=replace(OPS[2], count=SHORT + 1)))
    return played(plan, {0: (2, 3, 4, 5, 6, 7), 1: (3, 5, 6, 7), 2: (4, 5, 6, 7)}, MISFIT)


LEFT = Told(
    "PeerLeftError",
    f"[rank 0 of 3, peer 2, recv, sequence 2] rank 1 (pid {PID}) gave the group up: "
    "[rank 1 of 3, peer 2, barrier, sequence 2] rank 2 (pid 78) destroyed its process group",
    2,
    2,
)
ALONE = Told(
    "PeerLeftError",
    "[rank 2 of 3, recv, sequence 1] all other ranks destroyed their process groups, and none sent "
    "this message",
    None,
    1,
)


def one_too_many(asynchronous: tuple[int, ...] = (4,)) -> Run:
    """Rank 1 calls one more than the others, finds that they have left, and gives the group up."""
    other = Op(0, "barrier")
    run = played(schedule(Fault("extra", 1, len(OPS), other=other), asynchronous), {0: (4,)}, LEFT)
    run.ended[1].results.append(Result(EXTRA, 0, 7.5, 7.5, 8.0, replace(LEFT, sequence=2)))
    return run


def left_alone() -> Run:
    """Rank 1 leaves before operation 5, in which rank 2 gets only rank 0's message."""
    return played(schedule(Fault("leave", 1, 5), ops=OPS[:6]), {2: (5,)}, ALONE)


def _result(run: Run, rank: int, op: int) -> Result:
    return next(result for result in run.ended[rank].results if result.op == op)


def _set(rank: int, op: int, **changes: object) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        for name, value in changes.items():
            setattr(_result(run, rank, op), name, value)

    return change


@pytest.mark.parametrize("make", [killed, departed, misfit, one_too_many, left_alone])
def test_what_is_right_passes(make: Callable[[], Run]) -> None:
    assert judge(make()) == []


EARLIER = replace(LOST, sequence=0)


def _arrives_late(run: Run) -> None:
    """Rank 0 has not waited for rank 2's long message: it may learn of the death later."""
    _set(0, 4, error=None)(run)


def _sent_early(run: Run) -> None:
    _set(0, 5, error=None)(run)


def _given_up(run: Run) -> None:
    """The failure is found in a message: with it goes the collective that the victim has ended."""
    for result in run.ended[0].results[1:]:
        result.error = EARLIER


FREE = {
    "what the dead had sent": (killed, _set(0, 2, error=LOST)),
    "a message between others": (lambda: killed((3, 4)), _arrives_late),
    "a short send to nobody": (lambda: killed((3, 4)), _sent_early),
    "the last collective, and what lay there": (lambda: killed((1, 2)), _given_up),
}


@pytest.mark.parametrize("name", FREE)
def test_what_chance_decides_passes(name: str) -> None:
    make, change = FREE[name]
    run = make()
    change(run)
    assert judge(run) == []


def test_with_nothing_pending_the_last_collective_is_not_given_up() -> None:
    run = killed((2,))
    _given_up(run)
    assert any("was to end well" in text for text in judge(run))


def _lost_on_its_way(run: Run) -> None:
    result = _result(run, 0, 2)
    result.error = _result(run, 0, 3).error


WRONG = {
    "wrong data": (killed, _set(0, 2, right=False), "a wrong result"),
    "what lay there is lost": (departed, _lost_on_its_way, "was to end well"),
    "what had ended before": (killed, _set(0, 0, error=LOST), "was to end well"),
    "a receive of what nobody has sent": (killed, _set(2, 5, error=None), "was to fail"),
    "a long send to nobody": (killed, _set(0, 3, error=None), "was to fail"),
    "a batch with the dead": (killed, _set(2, 6, error=None), "was to fail"),
    "well after the failure was known": (killed, _set(0, 5, error=None), "after a failure"),
    "a number to come": (killed, _set(0, 3, error=replace(LOST, sequence=3)), "another operation"),
    "another rank": (killed, _set(0, 3, error=replace(LOST, peer=2)), "not one of"),
    "a misfit that is received": (misfit, _set(0, 2, error=None), "was to fail"),
    "a misfit that writes": (misfit, _set(0, 2, untouched=False), "touched"),
    "a misfit that blames the receiver": (
        misfit, _set(1, 3, error=replace(MISFIT, peer=0)), "not one of",
    ),
    "a misfit without the calls": (
        misfit, _set(0, 2, error=replace(MISFIT, text=LOST.text)), "does not tell",
    ),
    "a message that was over before the call too many": (
        lambda: one_too_many(()), lambda run: None, "was to end well",
    ),
    "a death that there was not": (
        one_too_many, _set(0, 4, error=replace(LOST, sequence=2)), "not one of",
    ),
    "one that left, and nobody misses": (
        one_too_many,
        _set(0, 4, error=replace(LEFT, text="[rank 0 of 3, peer 2, recv, sequence 2] rank 2 left")),
        "does not tell what it found",
    ),
    "one that left and has sent its message": (
        left_alone, _set(2, 5, error=replace(ALONE, peer=0)), "not one of",
    ),
    "nobody left, while one is at work": (left_alone, _set(0, 5, ended=30.0), "not one of"),
    "nobody left, while one has failed": (
        left_alone, _set(0, 5, error=replace(LOST, kind="PeerLeftError")), "not one of",
    ),
    "nobody to blame, and nothing told": (
        left_alone,
        _set(2, 5, error=replace(ALONE, text="[rank 2 of 3, recv, sequence 1] it failed")),
        "not one of",
    ),
    "nobody to blame for a message of one rank": (
        lambda: played(
            schedule(Fault("leave", 1, 2), ops=OPS[:3]), {0: (2,)}, replace(ALONE, sequence=1)
        ),
        lambda run: None,
        "not one of",
    ),
    "a collective behind a misfit": (misfit, _set(2, 7, error=None), "was to fail"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    make, spoil, word = WRONG[name]
    run = make()
    spoil(run)
    assert any(word in text for text in judge(run)), judge(run)


def test_a_long_send_of_what_does_not_fit_fails_on_both_sides() -> None:
    plan = schedule(Fault("misfit", 1, 2, other=replace(OPS[2], count=LONG)))
    failed = {0: (2, 3, 4, 5, 6, 7), 1: (2, 3, 5, 6, 7), 2: (4, 5, 6, 7)}
    assert judge(played(plan, failed, MISFIT)) == []
    failed[1] = failed[1][1:]
    assert any("was to fail" in text for text in judge(played(plan, failed, MISFIT)))


def test_where_nothing_is_wrong_every_message_arrives() -> None:
    plan = schedule(Fault("delay", 1, 3, seconds=0.1))
    assert judge(played(plan, {}, LOST)) == []
    for rank, op in ((0, 2), (0, 3), (1, 3), (2, 5), (0, 6)):
        assert any("to end well" in text for text in judge(played(plan, {rank: (op,)}, LOST)))

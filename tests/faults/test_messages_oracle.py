"""The oracle of sends and receives: what must fail, what must arrive, and what chance decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults import runs
from faults.oracle import judge
from faults.report import EXTRA, Result, Run, Told
from faults.runs import PID, failing, judged, result
from faults.runs import with_result as _set
from faults.schedule import Fault, Op, Schedule

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


def schedule(
    fault: Fault, asynchronous: tuple[int, ...] = (), ops: tuple[Op, ...] = OPS
) -> Schedule:
    """Return a schedule of three ranks; 1 is the victim. Others wait for some only at the end."""
    later = lambda rank, op: rank != 1 and op in asynchronous  # noqa: E731
    return runs.schedule(ops, ((0, 1, 2),), fault, later)


def played(plan: Schedule, failed: dict[int, tuple[int, ...]], told: Told) -> Run:
    return runs.played(plan, failing(told, failed))


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


@pytest.mark.parametrize("make", [killed, departed, misfit, one_too_many, left_alone])
def test_what_is_right_passes(make: Callable[[], Run]) -> None:
    assert judge(make()) == []


EARLIER = replace(LOST, sequence=0)


def _given_up(run: Run) -> None:
    """The failure is found in a message: with it goes the collective that the victim has ended."""
    for one in run.ended[0].results[1:]:
        one.error = EARLIER


FREE = {
    "what the dead had sent": (killed, _set(0, 2, error=LOST)),
    # Rank 0 has not waited for rank 2's long message: it may learn of the death later.
    "a message between others": (lambda: killed((3, 4)), _set(0, 4, error=None)),
    "a short send to nobody": (lambda: killed((3, 4)), _set(0, 5, error=None)),
    "the last collective, and what lay there": (lambda: killed((1, 2)), _given_up),
}


@pytest.mark.parametrize("name", FREE)
def test_what_chance_decides_passes(name: str) -> None:
    assert judged(*FREE[name]) == []


def test_with_nothing_pending_the_last_collective_is_not_given_up() -> None:
    assert "was to end well" in str(judged(lambda: killed((2,)), _given_up))


def _lost_on_its_way(run: Run) -> None:
    result(run, 0, 2).error = result(run, 0, 3).error


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
    play, change, word = WRONG[name]
    assert word in str(judged(play, change))


def test_a_long_send_of_what_does_not_fit_fails_on_both_sides() -> None:
    plan = schedule(Fault("misfit", 1, 2, other=replace(OPS[2], count=LONG)))
    failed = {0: (2, 3, 4, 5, 6, 7), 1: (2, 3, 5, 6, 7), 2: (4, 5, 6, 7)}
    assert judge(played(plan, failed, MISFIT)) == []
    failed[1] = failed[1][1:]
    assert "was to fail" in str(judge(played(plan, failed, MISFIT)))


def test_where_nothing_is_wrong_every_message_arrives() -> None:
    plan = schedule(Fault("delay", 1, 3, seconds=0.1))
    assert judge(played(plan, {}, LOST)) == []
    for rank, op in ((0, 2), (0, 3), (1, 3), (2, 5), (0, 6)):
        assert "to end well" in str(judge(played(plan, {rank: (op,)}, LOST)))

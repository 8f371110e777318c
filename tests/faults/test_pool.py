"""The harness itself, with real ranks: faults outside of the plan, and hangs, are reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from faults import pool, runs
from faults.oracle import judge
from faults.pool import Lane
from faults.schedule import Fault, Op, Schedule, Step
from support import ranks
from support.patience import ENDS

OPS = (
    Op(0, "all_reduce", count=100),
    Op(0, "all_reduce", count=50000),
    Op(0, "message", count=5000, source=1, root=0),
    Op(0, "barrier"),
)


def schedule(fault: Fault) -> Schedule:
    return runs.schedule(OPS, ((0, 1, 2),), fault, lambda rank, op: op == 1)


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    lane = Lane("default")
    yield lane
    assert lane.close() == []


FAULTS = {
    "kill": Fault("kill", 1, 1),
    "leave": Fault("leave", 1, 1),
    "mismatch": Fault("mismatch", 1, 1, other=Op(0, "barrier")),
    "abort": Fault("abort", 1, 1),
    "misfit": Fault("misfit", 1, 2, other=replace(OPS[2], count=4999)),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_that_is_not_in_the_plan_is_reported(lane: Lane, kind: str) -> None:
    plan = schedule(FAULTS[kind])
    run = lane.play(plan)
    assert judge(run) == []
    run.schedule = replace(plan, fault=Fault())
    assert judge(run)


def test_a_wrong_sum_is_reported(lane: Lane) -> None:
    plan = schedule(Fault())
    assert judge(lane.play(plan)) == []
    # Data depend on the operation's number: rank 2 alone has those of operation 6.
    shifted = replace(plan, ops=(*OPS, Op(0, "barrier"), Op(0, "barrier"), OPS[0]))
    steps = (Step(6, False, False), *plan.steps[2][1:])
    run = lane.play(replace(shifted, steps=(*plan.steps[:2], steps)))
    assert any("a wrong result" in text for text in judge(run))


def test_a_wrong_message_is_reported(lane: Lane) -> None:
    plan = schedule(Fault())
    # Rank 1 alone has the data of operation 4.
    other = replace(plan, ops=(*OPS, OPS[2]))
    sender = (*plan.steps[1][:2], Step(4, False, False), plan.steps[1][3])
    run = lane.play(replace(other, steps=(plan.steps[0], sender, plan.steps[2])))
    assert any("(operation 2): a wrong result" in text for text in judge(run))


def test_a_rank_that_does_not_answer_is_a_hang_with_evidence(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = lane.play(schedule(Fault())).seconds
    with monkeypatch.context() as patch:
        patch.setattr(pool, "PATIENCE", max(3.0, 10 * usual))
        run = lane.play(schedule(Fault("delay", 1, 1, seconds=600)))
    assert run.hung == [0, 1, 2]
    assert judge(run) == ["ranks [0, 1, 2] do not answer"]
    assert "_strike" in run.evidence  # where the victim sleeps
    assert "SigCgt" in run.evidence  # of /proc/PID/status
    # The next schedule gets new processes.
    assert judge(lane.play(schedule(Fault()))) == []


def test_a_status_is_read_by_one_thread_at_a_time(lane: Lane) -> None:
    """A start of a process reads the statuses of all, so no other thread may read one then."""
    started = lane._players(schedule(Fault("none")))[0]
    lane.ranks.remove(started)
    statuses: list[int | None] = []
    ending = threading.Thread(target=lambda: statuses.append(started.end()))
    with ranks._starting:
        started.process.kill()
        ending.start()
        ending.join(0.5)
        assert statuses == [] and started.process._popen.returncode is None
    ending.join(ENDS)
    assert statuses == [-9]

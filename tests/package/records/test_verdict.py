"""Which rank is to blame, in one line."""

from __future__ import annotations

from typing import Any

import pytest
from package.records.test_jobs import MESSAGE, NOW, at, done, group, inside, rank, world
from support.record_files import MadeCall

from fastcomm._records.jobs import Job, jobs
from fastcomm._records.verdict import verdict

REDUCE = "all_reduce(float32, 1024 elements)"
LATE = "rank 1 of group '0' holds up ranks 0, 2: it "
BARRIER: dict[str, Any] = {"operation": "barrier", "count": 0}


def trio(*calls: MadeCall, state: str | None = "S") -> Job:
    """Ranks 0 and 2 are in a call for 3 s; rank 1 has made these calls."""
    waiting = [done(), inside(1, 3.0)]
    return world(waiting, list(calls), waiting, states=["S", state, "S"])


CASES = {
    "outside": (
        trio(done(0, 12.3)),
        f"{LATE}has been outside any call for 12.3 s; its last was {REDUCE}, sequence 0",
        False,
    ),
    "no call": (
        trio(),
        f"{LATE}has been outside any call for 60.0 s; it has called nothing yet",
        False,
    ),
    "stopped": (
        trio(done(), state="T"),
        f"{LATE}is stopped, outside any call; its last was {REDUCE}, sequence 0",
        True,
    ),
    "dead": (
        trio(inside(1), state=None),
        f"{LATE}is gone, in {REDUCE}, sequence 1: no process here has it",
        True,
    ),
    "an earlier call": (
        trio(inside(0, 4.0, started=at(4.0))),
        f"{LATE}has been in {REDUCE}, sequence 0 for 4.0 s",
        False,
    ),
    "another operation": (
        trio(inside(1, 3.0, **BARRIER)),
        f"ranks of group '0' call different operations: ranks 0, 2: {REDUCE}, sequence 1; "
        "rank 1: barrier(), sequence 1",
        False,
    ),
    "several": (
        world([inside(0, 11)], [], []),
        "ranks 1, 2 of group '0' hold up rank 0: they are outside any call, for 60.0 s or more",
        True,
    ),
    "other hosts": (
        world([inside(0, 3)], [inside(0, 3)], size=8),
        "ranks 0, 1 of group '0': in a call that may wait for ranks 2-7, of which no process is "
        "here: on another host, or ended",
        False,
    ),
    "a circle": (
        world([inside(**MESSAGE, rank=1)], [inside(**MESSAGE, rank=0)]),
        "ranks wait for each other: rank 0 of group '0' for rank 1 in recv(float32, 1024 elements, "
        "from rank 1); rank 1 of group '0' for rank 0 in recv(float32, 1024 elements, from rank 0)",
        True,
    ),
    "a short wait": (world([inside(0, 0.5)], []), "no rank has waited for 1 s", False),
    "dead, not waited for": (
        world([done()], [done()], states=["S", None]),
        "rank 1 of group '0' is gone, outside any call: no process here has it; its last was "
        f"{REDUCE}, sequence 0; no rank waits for it yet",
        True,
    ),
    "moving data": (
        world(*[[inside(0, 30, started=at(30))]] * 2),
        "no rank has waited for 1 s",
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdicts(case: str) -> None:
    job, said, is_held_up = CASES[case]
    judged = verdict(job)
    assert (judged.text, judged.is_held_up) == (said, is_held_up)


@pytest.mark.parametrize(("ago", "is_held_up"), [(9.9, False), (10.1, True)])
def test_a_job_is_held_up_after_ten_seconds(ago: float, is_held_up: bool) -> None:
    judged = verdict(world([inside(0, ago)], []))
    assert judged.waits == pytest.approx(ago)
    assert judged.is_held_up == is_held_up


def test_a_rank_that_waits_in_another_group_is_not_to_blame() -> None:
    pair: dict[str, Any] = {"token": 8, "name": "pair"}
    ranks = [
        rank([inside(0, 5)], [group(0, 3)], pid=1),
        rank([inside(0, 8, group=1)], [group(1, 3), group(0, 2, **pair)], pid=2),
        rank([done(0, 9), inside(0, 5)], [group(2, 3), group(1, 2, **pair)], pid=3),
    ]
    (job,) = jobs(ranks, NOW)
    call = f"for rank 1 in {REDUCE}, sequence 0"
    assert verdict(job).text == (
        f"ranks wait for each other: rank 0 of group 'pair' {call}; rank 2 of group '0' {call}"
    )
    ranks[2] = rank([done(0, 9)], [group(2, 3), group(1, 2, **pair)], pid=3)
    (job,) = jobs(ranks, NOW)
    judged = verdict(job)
    assert judged.text.startswith("rank 1 of group 'pair' holds up rank 0: it has been outside")
    assert [number for _, number in judged.culprits] == [1]


def test_the_gone_come_first() -> None:
    job = world([inside(0, 50)], [], [inside(0, 1)], [], states=["S", "S", "S", "T"])
    assert verdict(job).text == (
        "rank 3 of group '0' holds up ranks 0, 2: it is stopped, outside any call; it has called "
        "nothing yet (and 1 more such)"
    )


def test_a_job_without_a_group() -> None:
    (job,) = jobs([rank([], [])], NOW)
    judged = verdict(job)
    assert (judged.text, judged.is_held_up) == ("no process group yet", False)

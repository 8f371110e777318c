"""What ranks do and whom they wait for, by their records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.record_files import MadeCall, MadeGroup, made, memory_file

from fastcomm._records import layout
from fastcomm._records.find import RankFile
from fastcomm._records.jobs import Job, jobs
from fastcomm._records.members import Member
from fastcomm._records.processes import Process

NOW = 100 * 10**9


def at(seconds: float) -> int:
    """So long before now."""
    return NOW - int(seconds * 1e9)


def done(sequence: int = 0, ago: float = 20.0, **changed: Any) -> MadeCall:
    call = MadeCall(at(ago) - 1000, at(ago) - 500, at(ago), sequence=sequence)
    return replace(call, **changed)


def inside(sequence: int = 1, ago: float = 12.0, **changed: Any) -> MadeCall:
    return replace(MadeCall(at(ago), sequence=sequence), **changed)


def rank(
    calls: Sequence[MadeCall], groups: Sequence[MadeGroup], state: str | None = "S", pid: int = 1
) -> RankFile:
    fd = memory_file(made(calls, groups, pid=pid))
    try:
        snapshot = layout.read(fd)
    finally:
        os.close(fd)
    process = Process(pid, pid, 0, state, 0, 0.0, "train") if state is not None else None
    return RankFile(snapshot, process, (pid,))


def world(*calls: Sequence[MadeCall], states: Sequence[str | None] = (), size: int = 0) -> Job:
    """A job of one group, whose ranks have made these calls."""
    (job,) = jobs(
        [
            rank(made_, [group(number, size or len(calls))], state, pid=number + 1)
            for number, (made_, state) in enumerate(
                zip(calls, states or ["S"] * len(calls), strict=True)
            )
        ],
        NOW,
    )
    return job


def group(number: int, size: int, **more: Any) -> MadeGroup:
    return MadeGroup(number, size, opened=at(60), **more)


def only(job: Job) -> tuple[Member, ...]:
    (view,) = job.groups
    return view.members


MESSAGE: dict[str, Any] = {"operation": "recv", "sequence": 2**64 - 1, "ended": 0}

# Calls of rank 0; of rank 1, and the state of its process: then whom rank 0 waits for, and the
# state of rank 1.
CASES = {
    "late": ([done(), inside()], [done()], "S", (1,), "outside any call"),
    "there": ([done(), inside()], [done(), inside()], "S", (), "in call"),
    "ahead": ([done(), inside()], [done(), done(1), inside(2)], "S", (), "in call"),
    "behind": ([done(), inside()], [inside(0)], "S", (1,), "in call"),
    "not a call yet": ([inside(0)], [], "S", (1,), "outside any call"),
    "of another lane": (
        [done(), inside()],
        [done(), done(1, lane=1)],
        "S",
        (1,),
        "outside any call",
    ),
    "something else": ([inside()], [inside(operation="barrier")], "S", (1,), "in call"),
    "started": ([inside(started=at(11))], [inside()], "S", (), "in call"),
    "started, late": ([inside(started=at(11))], [done()], "S", (), "outside any call"),
    "stopped": ([inside()], [inside()], "T", (1,), "stopped"),
    "traced": ([inside()], [inside()], "t", (1,), "stopped"),
    "dead": ([inside()], [inside()], None, (1,), "dead"),
    "zombie": ([inside()], [inside()], "Z", (1,), "dead"),
    "started, dead": ([inside(started=at(11))], [inside(started=at(11))], None, (1,), "dead"),
    "dead, ended it before": ([inside()], [done(1)], None, (), "dead"),
    "without a number": ([inside(2**64 - 1)], [], "S", (), "outside any call"),
    "a message": ([inside(**MESSAGE, rank=1)], [done()], "S", (1,), "outside any call"),
    "of any rank": ([inside(**MESSAGE, rank=-1)], [done()], "S", (), "outside any call"),
    "of the rank itself": ([inside(**MESSAGE, rank=0)], [done()], "S", (), "outside any call"),
    "message and answer": (
        [inside(**MESSAGE, rank=1)],
        [inside(**MESSAGE | {"operation": "send"}, rank=0)],
        *("S", (), "in call"),
    ),
    "both receive": (
        [inside(**MESSAGE, rank=1)],
        [inside(**MESSAGE, rank=0)],
        "S",
        (1,),
        "in call",
    ),
    "another tag": (
        [inside(**MESSAGE, rank=1, tag=1)],
        [inside(**MESSAGE | {"operation": "send"}, rank=0)],
        *("S", (1,), "in call"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_whom_a_rank_waits_for(case: str) -> None:
    first, second, state, awaited, doing = CASES[case]
    zero, one = only(world(first, second, states=["S", state]))
    assert (zero.waits_for, one.state) == (awaited, doing)
    assert zero.differs == ((1,) if case == "something else" else ())
    assert zero.waits == (12.0 if awaited else 0.0)


def test_times_of_states() -> None:
    members = only(world([done(), inside(1, 7)], [done(0, 5)], [], [done(0, 3)], states="SSRT"))
    assert [member.since for member in members] == [7.0, 5.0, 60.0, 3.0]
    assert not any(member.computes for member in members)  # "R" may be for a moment


def test_the_oldest_open_call_counts() -> None:
    (member, _) = only(world([inside(1, 9), inside(2, 8), inside(3, 7)], [done()]))
    assert member.call is not None and member.call.sequence == 1
    assert (member.open, member.since) == (3, 9.0)


def test_ranks_that_are_not_here_are_named_and_waited_for_last() -> None:
    job = world([inside()], [inside()], size=6)
    assert job.groups[0].missing == ((2, 5),)
    assert [member.missing for member in only(job)] == [((2, 5),), ((2, 5),)]
    zero, one = only(world([inside()], [done()], size=6))
    assert (zero.waits_for, zero.missing, one.missing) == ((1,), (), ())
    zero, one = only(world([inside(**MESSAGE, rank=4)], [inside(**MESSAGE, rank=0)], size=6))
    assert (zero.missing, one.waits_for, one.missing) == (((4, 4),), (0,), ())


def test_jobs_are_ranks_that_share_groups() -> None:
    def of(pid: int, *tokens: int) -> RankFile:
        return rank([], [group(pid, 9, token=token) for token in tokens], pid=pid)

    found = jobs([of(1, 1), of(2, 2), of(3, 3), of(4, 1, 2), of(5, 5), of(6)], NOW)
    pids = [sorted(r.snapshot.pid for r in job.ranks) for job in found]
    assert sorted(pids) == [[1, 2, 4], [3], [5], [6]] and pids[0] == [1, 2, 4]
    assert [view.group.token[-1] for view in found[0].groups] == ["1", "2"]


def test_closed_groups_are_left_out_unless_there_is_nothing_else() -> None:
    closed, other = group(0, 1, closed=at(5)), group(0, 1, token=8, name="open")
    (job,) = jobs([rank([], [closed, other])], NOW)
    assert [view.group.name for view in job.groups] == ["open"]
    (job,) = jobs([rank([], [closed])], NOW)
    assert [view.group.name for view in job.groups] == ["0"]
    assert only(job)[0].state == "outside any call"


def test_a_rank_that_has_closed_the_group_has_left() -> None:
    ranks = [rank([inside()], [group(0, 2)]), rank([], [group(1, 2, closed=at(5))], pid=2)]
    (job,) = jobs(ranks, NOW)
    zero, one = only(job)
    assert (one.state, one.since, zero.waits_for) == ("left", 5.0, (1,))


def test_a_call_of_another_group() -> None:
    groups = [group(0, 2), group(0, 2, token=8, name="pair")]
    peers = [group(1, 2), group(1, 2, token=8, name="pair")]
    ranks = [rank([inside(0, group=1)], groups), rank([inside(0)], peers, pid=2)]
    (job,) = jobs(ranks, NOW)
    whole, pair = job.groups
    assert [member.state for member in whole.members] == ["in another group's call", "in call"]
    assert [member.waits_for for member in whole.members] == [(), (0,)]
    assert [member.waits_for for member in pair.members] == [(1,), ()]


def test_of_two_that_say_they_are_the_same_the_living_one_counts() -> None:
    twins = [rank([], [group(0, 1)], state, pid) for pid, state in ((1, None), (2, "S"))]
    for ranks in (twins, twins[::-1]):
        (job,) = jobs(ranks, NOW)
        assert [member.state for member in only(job)] == ["outside any call"]


def test_busy_processes_compute() -> None:
    (job,) = jobs([rank([], [group(0, 1)], pid=3)], NOW, busy={3})
    assert only(job)[0].computes


def test_groups_that_make_no_sense_are_left_out() -> None:
    (job,) = jobs([rank([], [group(5, 4), group(-1, 4), group(0, 2**31 - 1, members=(1,))])], NOW)
    assert [view.missing for view in job.groups] == [((1, 2**31 - 2),)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_ranks_wait_for_exactly_those_behind_them(reached: list[int]) -> None:
    calls = [[done(n) for n in range(number)] + [inside(number)] for number in reached]
    for member, own in zip(only(world(*calls)), reached, strict=True):
        assert member.waits_for == tuple(r for r, other in enumerate(reached) if other < own)

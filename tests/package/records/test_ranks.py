"""Numbers of ranks, and the moment up to which open calls have lasted."""

from __future__ import annotations

from dataclasses import replace

from support.made_ranks import BASE, made_rank
from support.record_files import MadeCall, MadeGroup

from fastcomm._records.ranks import member, number_of


def test_a_rank_has_its_number_in_the_job() -> None:
    groups = [MadeGroup(0, 2, members=[3, 5]), MadeGroup(1, 2, members=[1, 3], token=8)]
    snapshot = made_rank(3, 2, [], groups).snapshot
    assert number_of(snapshot) == 3
    assert [member(snapshot.groups[0], rank) for rank in (0, 1, 2, -1, None)] == [
        *(3, 5, None, None, None)
    ]


def test_without_a_group_there_is_no_number() -> None:
    snapshot = replace(made_rank(0, 1, []).snapshot, groups=())
    assert number_of(snapshot) is None


def test_no_call_is_later_than_now() -> None:
    rank = made_rank(0, 1, [MadeCall(issued=BASE + 5, ended=BASE + 700)])
    assert rank.now == rank.read_at
    assert replace(rank, read_at=3).now == BASE + 700
    assert made_rank(0, 1, []).now > 0

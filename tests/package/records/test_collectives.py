"""Collectives put together from the calls of ranks."""

from __future__ import annotations

from support.made_ranks import BASE, MS, left_alone, made_job, made_rank
from support.record_files import MadeCall, MadeGroup

from fastcomm._records.collectives import matched
from fastcomm._records.ranks import Rank


def _ranks(*calls: MadeCall) -> list[Rank]:
    return [made_rank(number, len(calls), [call]) for number, call in enumerate(calls)]


def test_who_came_when() -> None:
    (found,) = matched(
        _ranks(
            MadeCall(issued=BASE + 100, started=BASE + 410, ended=BASE + 900),
            MadeCall(issued=BASE + 400, started=BASE + 405, ended=BASE + 950),
            MadeCall(issued=BASE + 150, started=0, ended=BASE + 920),
        )
    )
    assert list(found.calls) == [0, 2, 1]
    assert (found.straggler, found.lateness) == (1, 250)
    assert [found.wait(rank) for rank in range(3)] == [310, 5, 250]
    assert found.duration == 550
    assert found.is_whole and found.has_gone_well
    assert not found.is_open and not found.is_cut_off


def test_a_planted_straggler_is_named() -> None:
    found = matched(made_job(4, 20, late=1))
    assert [each.sequence for each in found] == list(range(20))
    late = [each for each in found if each.straggler == 1 and each.lateness == 3 * MS]
    assert len(late) == 16
    assert sorted(each.straggler or 0 for each in found if each not in late) == [0, 1, 2, 3]


def test_a_rank_that_has_not_come_is_absent() -> None:
    found = matched(left_alone(4, 7, by=2))
    assert [each.absent for each in found] == [()] * 7 + [(2,)]
    last = found[-1]
    assert last.is_open and not last.is_cut_off and last.straggler is None and last.lateness == 0
    assert last.duration is None


def test_a_rank_whose_record_is_gone_is_not_absent() -> None:
    full = made_job(3, 4)
    cut = made_rank(1, 3, [MadeCall(issued=BASE + 50, ended=BASE + 60, sequence=3)])
    found = matched([full[0], cut, full[2]])
    assert [each.is_cut_off for each in sorted(found, key=lambda each: each.sequence)] == [
        *(True, True, True, False)
    ]
    assert all(each.absent == () for each in found)


def test_ranks_that_were_not_read_are_not_absent() -> None:
    found = matched(left_alone(4, 3, by=2)[:2])
    assert all(each.is_cut_off and not each.absent and not each.is_whole for each in found)


def test_groups_lanes_and_messages_are_kept_apart() -> None:
    groups = [MadeGroup(0, 1, name="a", token=1), MadeGroup(0, 1, name="b", token=2)]
    calls = [
        MadeCall(issued=BASE + 1, group=0),
        MadeCall(issued=BASE + 2, group=1),
        MadeCall(issued=BASE + 3, group=1, lane=1),
        MadeCall(issued=BASE + 4, operation="send", rank=0),
    ]
    found = matched([made_rank(0, 1, calls, groups)])
    assert [(each.group.name, each.lane) for each in found] == [("a", 0), ("b", 0), ("b", 1)]
    assert all(each.straggler is None for each in found)


def test_what_has_gone_wrong_has_no_duration() -> None:
    done = MadeCall(issued=BASE + 1, ended=BASE + 9)
    failed = MadeCall(issued=BASE + 1, ended=BASE + 9, outcome="PeerLostError")
    other = MadeCall(issued=BASE + 1, ended=BASE + 9, operation="broadcast")
    assert matched(_ranks(done, done))[0].duration == 8
    assert matched(_ranks(done, failed))[0].duration is None
    assert matched(_ranks(done, other))[0].duration is None


def test_a_root_does_not_wait_after_its_end() -> None:
    early = MadeCall(issued=BASE + 10, ended=BASE + 20, operation="broadcast", rank=0)
    late = MadeCall(issued=BASE + 90, ended=BASE + 99, operation="broadcast", rank=0)
    (found,) = matched(_ranks(early, late))
    assert (found.wait(0), found.wait(1)) == (10, 0)

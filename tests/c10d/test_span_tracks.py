"""Operations in traces of torch's profiler: tracks of their own, waiting told from moving data."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.ranks import World, run_ranks
from support.trace import Event, traced, tracks_of, written

ALL = "fastcomm: group '0' of all 2 ranks"
SECOND = 1_000_000.0  # of a trace's times


def _whole(slices: list[Event]) -> list[Event]:
    return [each for each in slices if "sequence" in each.get("args", {})]


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


def _late(world: World) -> dict[str, list[Event]]:
    """Rank 1 comes late to a synchronous call, and to an asynchronous one."""
    world.init()

    def calls() -> None:
        dist.all_reduce(torch.ones(10))
        for is_async in (False, True):
            dist.barrier()
            time.sleep(0.2 * world.rank)
            work = dist.all_reduce(torch.ones(100_000), async_op=is_async)
            if work is not None:
                work.wait()

    return tracks_of(traced(calls))


def test_waiting_is_told_from_moving_data() -> None:
    for rank, tracks in enumerate(run_ranks(2, _late)):
        slices = tracks[ALL]
        whole = _whole(slices)
        assert [each["name"] for each in whole] == [
            *("all_reduce", "barrier", "all_reduce", "barrier", "all_reduce")
        ]
        assert [each["args"]["sequence"] for each in whole] == [0, 1, 2, 3, 4]
        assert [each["args"]["bytes"] for each in whole] == [40, 0, 400_000, 0, 400_000]
        for late in (whole[2], whole[4]):
            parts = [
                each
                for each in slices
                if each not in whole and late["ts"] <= each["ts"] and _end(each) <= _end(late) + 1
            ]
            waiting = sum(each["dur"] for each in parts if each["name"].startswith("waiting"))
            moving = [each for each in parts if each["name"] == "moving data"]
            assert len(moving) == 1 and moving[0]["dur"] > 0
            assert waiting + moving[0]["dur"] == pytest.approx(late["dur"], abs=0.01)
            if rank == 0:
                assert 0.1 * SECOND < waiting < 5 * SECOND
                assert [each["name"] for each in parts] == ["waiting for rank 1", "moving data"]
            else:
                assert waiting < 0.1 * SECOND


def test_operations_of_a_group_do_not_overlap() -> None:
    for tracks in run_ranks(2, _queued):
        first, second, third = _whole(tracks[ALL])
        assert _end(first) <= second["ts"] + 0.01 and _end(second) <= third["ts"] + 0.01


def _queued(world: World) -> dict[str, list[Event]]:
    world.init()

    def calls() -> None:
        works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()

    return tracks_of(traced(calls))


def _groups_and_messages(world: World) -> dict[str, list[Event]]:
    world.init()
    other = dist.new_group([0, 1])

    def calls() -> None:
        dist.all_reduce(torch.ones(1))
        dist.all_gather([torch.ones(2)] * 2, torch.ones(2), group=other)
        for count in (10, 1 << 20):  # in a slot, and in pieces
            if world.rank == 0:
                dist.send(torch.ones(count), 1)
            else:
                dist.recv(torch.ones(count))
        dist.barrier()

    return tracks_of(traced(calls))


def test_groups_and_messages_have_tracks_of_their_own() -> None:
    sender, receiver = run_ranks(2, _groups_and_messages)
    for tracks in (sender, receiver):
        (other,) = [name for name in tracks if "of ranks [0, 1]" in name]
        assert [each["name"] for each in _whole(tracks[other])] == ["all_gather"]
        assert [each["name"] for each in _whole(tracks[ALL])] == ["all_reduce", "barrier"]
    for tracks, name in ((sender, "send to rank 1"), (receiver, "recv from any rank")):
        whole = _whole(tracks[f"{ALL}, {name}"])
        assert [each["args"]["bytes"] for each in whole] == [40, 4 << 20]
        assert _end(whole[0]) <= whole[1]["ts"] + 0.01


def _failed(world: World) -> dict[str, list[Event]]:
    world.init()
    unlike = torch.ones(10 + world.rank)
    return tracks_of(traced(lambda: catch(dist.all_reduce, unlike)))


def test_a_failed_operation_says_so() -> None:
    for tracks in run_ranks(2, _failed):
        (whole,) = _whole(tracks[ALL])
        assert whole["args"]["failed"] == "yes"


def _twice(world: World) -> list[list[str]]:
    """Two profiles, with calls before, between and behind them; one ends in between."""
    world.init()
    dist.all_reduce(torch.ones(1))
    names = [[each["name"] for each in _whole(tracks_of(traced(dist.barrier))[ALL])]]
    dist.all_reduce(torch.ones(1))
    with torch.profiler.profile() as profile:
        dist.barrier()
        if world.rank == 0:
            work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    if world.rank == 1:
        work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    assert work is not None
    work.wait()
    names.append([each["name"] for each in _whole(tracks_of(written(profile))[ALL])])
    return names


def test_what_is_under_way_when_a_profile_ends_is_left_out() -> None:
    for first, second in run_ranks(2, _twice):
        assert first == ["barrier"]
        assert second[:1] == ["barrier"]


def _beside_an_old_one(world: World) -> list[str]:
    """A profile that is over, but still there, ends while another one runs."""
    world.init()
    old: list[Any] = [torch.profiler.profile()]
    with old[0]:
        dist.barrier()
    with torch.profiler.profile() as profile:
        old.clear()
        gc.collect()
        dist.all_reduce(torch.ones(1))
    return [each["name"] for each in _whole(tracks_of(written(profile))[ALL])]


def test_the_end_of_an_old_profile_ends_no_other() -> None:
    assert run_ranks(2, _beside_an_old_one) == [["all_reduce"]] * 2


def _continued(world: World) -> dict[str, list[Event]]:
    world.init()

    def gather(done: Any) -> None:
        dist.all_gather([torch.ones(2)] * 2, torch.ones(2))

    def calls() -> None:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work is not None
        work.get_future().then(gather).wait()

    return tracks_of(traced(calls))


def test_operations_of_continuations_have_a_track_of_their_own() -> None:
    for tracks in run_ranks(2, _continued):
        assert [each["name"] for each in _whole(tracks[ALL])] == ["all_reduce"]
        continued = _whole(tracks[f"{ALL}: in continuations"])
        assert [(each["name"], each["args"]["sequence"]) for each in continued] == [
            ("all_gather", 0)
        ]


def _alone(world: World) -> tuple[list[str], dict[str, list[Event]]]:
    world.init()
    tracks = tracks_of(traced(lambda: dist.all_reduce(torch.ones(1))))
    names = [each["name"] for slices in tracks.values() for each in slices]
    return names, tracks_of(traced(lambda: None))


def test_a_rank_alone_waits_for_nobody_and_moves_nothing() -> None:
    assert run_ranks(1, _alone) == [(["all_reduce"], {})]

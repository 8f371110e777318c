"""Calls that continuations issue over several hosts: their own order, bits and failures."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import Host
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks
from support.reductions import inputs, reduced, same
from support.stores import join_hosts

pytestmark = pytest.mark.serial  # network namespaces

COUNTS = (3, 1000, 70_001)  # enclosed in the envelope, short, long


def _summed(tensor: torch.Tensor) -> Any:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work.get_future()


def _mixed(world: World, hosts: list[Host], port: int, places: str) -> None:
    """Sums of equal shape, issued by the program and by continuations of two depths at random."""
    join_hosts(world, hosts, port, places)
    chance = random.Random(world.rank)

    def terms(step: int, index: int) -> list[torch.Tensor]:
        count = COUNTS[index % len(COUNTS)]
        return [inputs(torch.float32, count, 100 * step + rank) for rank in range(world.size)]

    def outer(index: int, before: Any) -> tuple[torch.Tensor, Any]:
        assert same(before.value()[0], reduced(terms(0, index), "sum"), "sum"), index
        time.sleep(chance.uniform(0, 0.003))
        own = terms(1, index)[world.rank]
        nested = _summed(terms(2, index)[world.rank]).then(lambda done: inner(index, done))
        dist.all_reduce(own)
        return own, nested

    def inner(index: int, before: Any) -> torch.Tensor:
        assert same(before.value()[0], reduced(terms(2, index), "sum"), "sum"), index
        time.sleep(chance.uniform(0, 0.003))
        own = terms(3, index)[world.rank]
        dist.all_reduce(own)
        return own

    futures = []
    for index in range(12):
        first = _summed(terms(0, index)[world.rank])
        futures.append(first.then(lambda done, index=index: outer(index, done)))
        time.sleep(chance.uniform(0, 0.003))
        own = terms(4, index)[world.rank]
        dist.all_reduce(own)
        assert same(own, reduced(terms(4, index), "sum"), "sum"), index
    for index, future in enumerate(futures):
        own, nested = future.wait()
        assert same(own, reduced(terms(1, index), "sum"), "sum"), index
        assert same(nested.wait(), reduced(terms(3, index), "sum"), "sum"), index


@pytest.mark.parametrize("places", ["0011", "0101", "012"])
def test_lanes_have_the_bits_of_one_host_in_any_order(four_hosts: list[Host], places: str) -> None:
    run_ranks(len(places), _mixed, four_hosts, 29860, places)


def _whole(world: World, hosts: list[Host], port: int) -> None:
    """Hosts of two ranks and of one: Gloo serves the group as a whole, lanes too."""
    join_hosts(world, hosts, port, "001")
    chance = random.Random(world.rank)
    futures = []
    for _ in range(20):
        again = torch.full((3,), 10.0)

        def once_more(before: Any, again: torch.Tensor = again) -> torch.Tensor:
            time.sleep(chance.uniform(0, 0.003))
            dist.all_reduce(again)
            return again

        futures.append(_summed(torch.ones(3)).then(once_more))
        time.sleep(chance.uniform(0, 0.003))
        own = torch.ones(3)
        dist.all_reduce(own)
        assert own.tolist() == [3.0] * 3
    assert [future.wait().tolist() for future in futures] == [[30.0] * 3] * 20


def test_lanes_where_nothing_is_composed(hosts: list[Host]) -> None:
    run_ranks(3, _whole, hosts, 29861)


def _all_kinds(world: World, hosts: list[Host], port: int) -> None:
    """Each kind of operation, in a continuation and outside, at the same time."""
    join_hosts(world, hosts, port, "0011")
    rank, size = world.rank, world.size

    def run(value: float) -> None:
        mine = torch.full((70_000,), value + rank)
        parts = torch.empty(size, 70_000)
        dist.all_gather_into_tensor(parts, mine)
        assert parts[:, -1].tolist() == [value + each for each in range(size)]
        piece = torch.empty(70_000)
        dist.reduce_scatter_tensor(piece, parts.flatten())
        assert piece.unique().tolist() == [size * (value + rank)]
        for root in range(size):
            told = mine.clone()
            dist.broadcast(told, root)
            assert told.unique().tolist() == [value + root]
        swapped = torch.empty(4 * size)
        dist.all_to_all_single(swapped, torch.arange(4.0 * size) + 100 * rank + value)
        assert swapped[::4].tolist() == [100 * each + 4 * rank + value for each in range(size)]
        gathered = [torch.empty(5) for _ in range(size)] if rank == 1 else None
        dist.gather(mine[:5], gathered, 1)
        assert gathered is None or [int(each[0]) for each in gathered] == [
            value + each for each in range(size)
        ]
        dist.barrier()

    futures = [
        _summed(torch.ones(3)).then(lambda done, value=value: run(value)) for value in (8.0, 9.0)
    ]
    run(3.0)
    for future in futures:
        future.wait()


def test_lanes_of_every_kind(hosts: list[Host]) -> None:
    run_ranks(4, _all_kinds, hosts, 29862)


def _die(world: World, hosts: list[Host], port: int, moment: str, who: int) -> list[Caught]:
    join_hosts(world, hosts, port, "0011")

    def once_more(done: Any) -> None:
        if moment != "forming":
            dist.all_reduce(torch.ones(3))
        if moment == "inside":
            _summed(torch.ones(3)).then(lambda done: dist.all_reduce(torch.ones(3))).wait()
        if world.rank == who:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1000):
            dist.all_reduce(torch.ones(1_000_000))

    child = _summed(torch.ones(3)).then(once_more)
    return [catch(child.wait), catch(dist.all_reduce, torch.ones(3))]


@pytest.mark.parametrize("who", [1, 2])
@pytest.mark.parametrize("moment", ["forming", "later", "inside"])
def test_a_death_in_a_lane_is_the_groups(hosts: list[Host], moment: str, who: int) -> None:
    outcomes = run_outcomes(4, _die, hosts, 29863, moment, who)
    for outcome in outcomes:
        if outcome.rank == who:
            continue
        assert outcome.error is None, outcome.error
        for caught in outcome.value:
            assert caught.kind == "PeerLostError", (outcome.rank, caught)
            assert f"rank {who}" in caught.text, (outcome.rank, caught)
            assert caught.seconds < SOON


def _unlike(world: World, hosts: list[Host], port: int) -> list[Caught]:
    join_hosts(world, hosts, port, "0011")

    def once_more(done: Any) -> None:
        dist.all_reduce(torch.ones(100_000 + (world.rank == 3)))

    child = _summed(torch.ones(3)).then(once_more)
    return [catch(child.wait), catch(dist.all_reduce, torch.ones(3))]


def test_calls_of_lanes_are_compared(hosts: list[Host]) -> None:
    for rank, caught in enumerate(run_ranks(4, _unlike, hosts, 29864)):
        assert [each.kind for each in caught] == ["CollectiveMismatchError"] * 2, (rank, caught)
        assert "rank 3" in caught[0].text, (rank, caught)


def _leave(world: World, hosts: list[Host], port: int) -> str:
    """One rank destroys its group, and the others have a call in a lane that needs it."""
    join_hosts(world, hosts, port, "0011")
    formed = _summed(torch.ones(3)).then(lambda done: dist.all_reduce(torch.ones(3)))
    formed.wait()
    if world.rank == 3:
        _summed(torch.ones(3)).wait()
        dist.destroy_process_group()
        return ""
    caught = catch(_summed(torch.ones(3)).then(lambda done: dist.all_reduce(torch.ones(3))).wait)
    assert caught.kind == "PeerLeftError", caught
    return caught.text


def test_a_rank_that_left_a_lane_is_named(hosts: list[Host]) -> None:
    told = run_ranks(4, _leave, hosts, 29865)
    assert all("rank 3" in text and "destroyed its process group" in text for text in told[:3])

"""Sends and receives over several hosts: shared memory inside each, Gloo between them."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import Host
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks
from support.reductions import DTYPES
from support.stores import join_hosts

pytestmark = pytest.mark.serial  # network namespaces

SIZES = [0, 1, 100, 40_000, 300_000]  # elements


def _content(dtype: torch.dtype, count: int, giver: int, number: int) -> torch.Tensor:
    return torch.full((count,), giver * 20 + number + 1).to(dtype)


def _in_rounds(world: World, hosts: list[Host], port: int, places: str) -> None:
    """Every rank to every other, with every type; then shapes, blocks, futures, continuations."""
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for step in range(1, size):
        to, of = (rank + step) % size, (rank - step) % size
        for number, dtype in enumerate(DTYPES):
            count = SIZES[number % len(SIZES)]
            got = torch.zeros(count, dtype=dtype)
            work = dist.isend(_content(dtype, count, rank, step), to)
            dist.recv(got, of)
            assert work is not None
            work.wait()
            assert torch.equal(got, _content(dtype, count, of, step)), (step, dtype, count)
    right, left = (rank + 1) % size, (rank - 1) % size
    # Tags, taken in another order; memory with gaps, which Gloo does not take.
    (near,) = [peer for peer in range(size) if peer != rank and places[peer] == places[rank]]
    for turned in (False, True):
        given = [torch.full((3, 4), float(rank * 10 + tag)).t() for tag in range(4)]
        works = [dist.isend(each, near, tag=tag) for tag, each in enumerate(given)]
        for tag in (2, 0, 3, 1):
            got = torch.zeros(3, 4).t()
            dist.recv(got, near, tag=tag)
            assert got.unique().tolist() == [near * 10 + tag], turned
        for work in works:
            assert work is not None and work.wait()
        # From here on by Gloo, to every other rank.
        if rank % 2 == 0:
            assert dist.recv(torch.zeros(3), None, tag=9) == right
        else:
            dist.send(torch.ones(3), left, tag=9)
    given, got = torch.full((70_000,), float(rank)), torch.zeros(70_000)
    block = [dist.P2POp(dist.isend, given, right), dist.P2POp(dist.irecv, got, left)]
    for each in dist.batch_isend_irecv(block):
        each.wait()
    assert got.unique().tolist() == [left]
    # A message of a continuation meets one of the thread.
    got = torch.zeros(5)
    if rank % 2 == 0:
        sent = dist.isend(torch.full((5,), float(rank)), rank + 1)
        assert sent is not None
        sent.get_future().then(lambda _: dist.isend(torch.full((5,), 9.0), rank + 1).wait()).wait()
    else:
        dist.recv(got, rank - 1)
        assert got.unique().tolist() == [rank - 1]
        work = dist.irecv(got, rank - 1)
        assert work is not None
        work.get_future().wait()
        assert got.unique().tolist() == [9.0]


@pytest.mark.parametrize("places", ["0011", "0110"])
def test_messages_of_every_pair(hosts: list[Host], places: str) -> None:
    run_ranks(4, _in_rounds, hosts, 30010, places)


ANY = 7  # the tag of messages that are received from any rank


def _at_random(world: World, hosts: list[Host], port: int, places: str, seed: int) -> None:
    """Posts all that a plan says, in an order of its own, and waits for it in another."""
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    plan = random.Random(seed)
    messages = []
    for _ in range(60):
        giver, getter = plan.sample(range(size), 2)
        tag = plan.choice([0, 1, ANY])
        count = 50 if tag == ANY else plan.choice([1, 300, 30_000])
        messages.append((giver, getter, tag, count))
    own = random.Random(seed * size + rank)
    steps: list[tuple[str, int, int, int]] = []
    for giver, getter, tag, count in messages:
        if giver == rank:
            steps.append(("send", getter, tag, count))
        if getter == rank:
            steps.append(("recv", giver, tag, count))
    # The order of each pair and tag stays; in between it is this rank's own.
    lanes: dict[tuple[str, int, int], list[tuple[str, int, int, int]]] = {}
    for step in steps:
        lanes.setdefault(step[:3], []).append(step)
    posted: list[tuple[dist.Work | None, torch.Tensor, int | None]] = []
    turn: dict[tuple[str, int, int], int] = {}
    while lanes:
        lane = own.choice(list(lanes))
        kind, peer, tag, count = lanes[lane].pop(0)
        if not lanes[lane]:
            del lanes[lane]
        number = turn[lane] = turn.get(lane, 0) + 1
        if own.random() < 0.2:
            time.sleep(own.random() * 0.003)
        if kind == "send":
            tensor = torch.full((count,), float(rank * 1000 + number))
            posted.append((dist.isend(tensor, peer, tag=tag), tensor, rank * 1000 + number))
        else:
            tensor = torch.zeros(count)
            source = None if tag == ANY else peer
            work = dist.irecv(tensor, source, tag=tag)
            posted.append((work, tensor, None if tag == ANY else peer * 1000 + number))
    own.shuffle(posted)
    from_any: list[float] = []
    for work, tensor, wanted in posted:
        assert work is not None
        if own.random() < 0.3:
            end = time.monotonic() + 60
            while not work.is_completed() and time.monotonic() < end:
                time.sleep(0.0005)
        work.wait()
        if wanted is not None:
            assert tensor.unique().tolist() == [wanted]
        else:
            assert int(tensor[0]) // 1000 == work._source_rank()
            from_any += tensor.unique().tolist()
    expected = [giver * 1000 + number
                for giver in range(size)
                for number in range(1, messages.count((giver, rank, ANY, 50)) + 1)]  # fmt: skip
    assert sorted(from_any) == expected


def _seeds(world: World, hosts: list[Host], port: int, places: str, seeds: list[int]) -> None:
    for seed in seeds:
        _at_random(world, hosts, port + seed % 50, places, seed)
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.parametrize("places", ["0011", "000111"])
def test_receives_from_any_rank_among_others(hosts: list[Host], places: str) -> None:
    run_ranks(len(places), _seeds, hosts, 30020, places, list(range(8)))


def _unlike(world: World, hosts: list[Host], port: int) -> Caught:
    join_hosts(world, hosts, port, "0011")
    if world.rank == 2:
        work = dist.isend(torch.ones(3, dtype=torch.int32), 3)
        caught = catch(dist.recv, torch.zeros(1), 3)
        del work
        return caught
    got = torch.zeros(3)
    caught = catch(dist.recv, got, 2 if world.rank == 3 else 1 - world.rank)
    assert got.tolist() == [0.0] * 3
    return caught


def test_messages_are_compared_with_their_receives(hosts: list[Host]) -> None:
    """On all ranks, of both hosts, the group has failed."""
    for caught in run_ranks(4, _unlike, hosts, 30030):
        assert caught.kind == "CollectiveMismatchError", caught
        assert "rank 3 called recv(float32, 3 elements) from rank 2, tag 0" in caught.text
        assert "rank 2 called send(int32, 3 elements) to rank 3, tag 0" in caught.text
        assert caught.world_size == 4 and caught.seconds < SOON


def _late(world: World, hosts: list[Host], port: int) -> Caught | None:
    join_hosts(world, hosts, port, "0011")
    if world.rank != 3:
        world.hear("given up")
        return None
    caught = catch(dist.recv, torch.zeros(3), 2)
    world.tell("given up")
    return caught


def test_a_message_that_does_not_come(hosts: list[Host]) -> None:
    told = run_ranks(4, _late, hosts, 30031, group_timeout=1.5)
    (caught,) = [one for one in told if one is not None]
    assert caught.kind == "CollectiveTimeoutError", caught
    assert (caught.rank, caught.peer, caught.operation) == (3, 2, "recv")
    assert "rank 2 (pid" in caught.text and "has not sent it" in caught.text
    assert 1.4 < caught.seconds < 1.5 + SOON


def _dies(world: World, hosts: list[Host], port: int, who: int, waits: str) -> Caught | None:
    join_hosts(world, hosts, port, "0011")
    dist.barrier()
    if world.rank == who:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank != 1:  # in no call; then in one
        time.sleep(0.3)
        return catch(dist.recv, torch.zeros(3), world.rank ^ 1)
    source = {"inside": 0, "any": None, "outside": 2}[waits]
    return catch(dist.recv, torch.zeros(3), source)


@pytest.mark.parametrize("who", [0, 3])
@pytest.mark.parametrize("waits", ["inside", "any", "outside"])
def test_a_death_ends_receives_inside_hosts(hosts: list[Host], who: int, waits: str) -> None:
    """Also of a rank on another host."""
    told = run_outcomes(4, _dies, hosts, 30032, who, waits)
    for rank, outcome in enumerate(told):
        if rank == who:
            continue
        assert outcome.error is None, outcome
        caught = outcome.value
        assert caught.kind == "PeerLostError" and caught.peer == who, (rank, caught)
        assert caught.seconds < 0.3 + SOON


def _leaves(world: World, hosts: list[Host], port: int) -> Caught | None:
    join_hosts(world, hosts, port, "0011")
    dist.barrier()
    if world.rank == 3:
        dist.destroy_process_group()
        world.tell("left")
        return None
    world.hear("left")
    if world.rank == 2:
        caught = catch(dist.send, torch.ones(3), 3)
        world.tell("given up")
        return caught
    return catch(dist.recv, torch.zeros(3), 1 - world.rank)


def test_a_send_to_a_rank_that_has_left_gives_the_group_up(hosts: list[Host]) -> None:
    """On the other host, too."""
    told = run_ranks(4, _leaves, hosts, 30033)
    for caught in [one for one in told if one is not None]:
        assert caught.kind == "PeerLeftError" and caught.peer == 3, caught
        assert caught.world_size == 4 and caught.seconds < SOON

"""Operations that Gloo does for ranks that share no memory: no waiting rank hangs in them."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch, interrupted_in
from support.messages import exchange
from support.on_ranks import on_ranks
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.serial  # short times are compared

GLOO = {"FASTCOMM_TRANSPORT": "gloo"}
MANY = 1 << 22  # more than a socket holds


@on_ranks(2, 3, environment=GLOO)
def test_messages(world: World) -> None:
    world.init()
    exchange(world)
    rank, size = world.rank, world.size
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(3)
    receiving = dist.irecv(got, before)
    assert receiving is not None
    future = receiving.get_future()  # for what moves only while somebody waits
    dist.send(torch.full((3,), float(rank)), after)
    assert future.wait()[0] is not None
    assert got.tolist() == [float(before)] * 3


@on_ranks(2, 3, environment=GLOO)
def test_collectives_and_their_futures(world: World) -> None:
    world.init()
    size = world.size
    one = torch.full((4,), float(world.rank))
    sums = torch.full((4,), float(sum(range(size))))
    works: list[Any] = []
    reduced, shared, part = one.clone(), one.clone(), torch.empty(2)
    gathered = torch.empty(4 * size)
    works.append(dist.all_reduce(reduced, async_op=True))
    works.append(dist.broadcast(shared, 1, async_op=True))
    works.append(dist.all_gather_into_tensor(gathered, one, async_op=True))
    works.append(dist.reduce_scatter_tensor(part, torch.ones(2 * size), async_op=True))
    works.append(dist.barrier(async_op=True))
    for work in works:
        assert work.wait() and work.is_completed() and work.is_success()
    assert torch.equal(reduced, sums) and torch.equal(shared, torch.ones(4))
    assert part.tolist() == [float(size)] * 2
    assert gathered.view(size, 4).mean(1).tolist() == [float(peer) for peer in range(size)]
    more = one.clone()
    future = dist.all_reduce(more, async_op=True).get_future()
    assert torch.equal(future.then(lambda done: done.value()[0] * 2).wait(), 2 * sums)
    parts = torch.empty(2)
    dist.reduce_scatter_tensor(parts, torch.ones(2 * size), async_op=True).get_future().wait()
    assert parts.tolist() == [float(size)] * 2


WAITS = {
    "all_reduce": lambda: dist.all_reduce(torch.zeros(MANY)),
    "all_reduce later": lambda: dist.all_reduce(torch.zeros(4), async_op=True).wait(),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(
        torch.zeros(4), torch.zeros(4 * dist.get_world_size())
    ),
    "recv": lambda: dist.recv(torch.zeros(4), 1),
    "recv from any": lambda: dist.recv(torch.zeros(4)),
    "send": lambda: dist.send(torch.zeros(MANY), 1),
    "recv later": lambda: dist.irecv(torch.zeros(4), 1).wait(),
}


def _lose_one(world: World, how: str) -> tuple[list[Caught], float]:
    """Kill rank 1 while the others wait for it, or for a rank that does."""
    world.init()
    dist.barrier()
    died = time.monotonic() + 0.3
    if world.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank == 2 and ("recv" in how or "send" in how):
        first = catch(dist.recv, torch.zeros(4), 0)
    else:
        first = catch(WAITS[how])
    later = [catch(dist.barrier), catch(dist.send, torch.zeros(1), 1)]
    return [first, *later], first.at - died


@pytest.mark.parametrize("how", WAITS)
def test_a_peer_dies(how: str) -> None:
    # A rank that waits for a message from any of several may still get it from the others.
    size = 2 if how == "recv from any" else 3
    outcomes = run_outcomes(size, _lose_one, how, environment=GLOO)
    assert outcomes[1].exitcode == -signal.SIGKILL
    for outcome in outcomes[::2]:
        assert outcome.error is None, outcome.error
        caught, delay = outcome.value
        assert [error.kind for error in caught] == ["PeerLostError"] * 3, caught
        assert caught[0].world_size == size and caught[0].rank == outcome.rank
        assert (caught[0].operation or "") in how or outcome.rank == 2
        assert "look at the others' output" in caught[0].text
        assert delay < SOON, delay
        assert all("comes after the process group has failed" in one.text for one in caught[1:])
        assert all(error.seconds < SOON for error in caught[1:])


def _interrupt(world: World, how: str) -> list[Caught]:
    world.init()
    dist.barrier()
    if world.rank == 1:
        start = time.monotonic()
        caught = catch(dist.recv, torch.zeros(4), 0, tag=9)
        assert time.monotonic() - start < SOON
        return [caught]
    caught = catch(interrupted_in, WAITS[how])
    later = catch(dist.all_reduce, torch.zeros(4))
    start = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - start < SOON
    return [caught, later]


@pytest.mark.parametrize("how", ["all_reduce", "all_reduce later", "recv", "recv from any", "send"])
def test_ctrl_c(how: str) -> None:
    (caught, later), [peers] = run_ranks(2, _interrupt, how, environment=GLOO)
    assert caught.kind == "KeyboardInterrupt"
    assert 0.25 < caught.seconds < SOON
    assert later.kind == "GroupPoisonedError"
    assert "rank 0 was interrupted in" in later.text
    assert peers.kind == "PeerLostError" and peers.operation == "recv"


def _one_is_late(world: World, how: str) -> list[Caught] | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        world.hear("given up")
        return [catch(dist.barrier)]
    caught = [catch(WAITS[how]), catch(dist.barrier)]
    world.tell("given up")
    return caught


@pytest.mark.parametrize("how", ["all_reduce", "all_reduce later", "recv", "recv from any", "send"])
def test_a_timeout_ends_the_group(how: str) -> None:
    caught, [other] = run_ranks(2, _one_is_late, how, group_timeout=0.7, environment=GLOO)
    assert caught[0].kind == caught[1].kind == "CollectiveTimeoutError"
    assert (caught[0].operation or "") in how and caught[0].rank == 0
    assert caught[0].peer == (None if "all_reduce" in how else 1)
    assert 0.65 <= caught[0].seconds < SOON
    assert other.kind in ("PeerLostError", "CollectiveTimeoutError")


def _wait_twice(world: World, how: str) -> Caught | None:
    world.init()
    dist.barrier()
    x = torch.zeros(4)
    if world.rank == 1:
        world.hear("expired")
        if how == "recv":
            dist.send(torch.ones(4), 0)
        else:
            dist.all_reduce(x + 1)
        dist.barrier()
        return None
    work: Any = dist.irecv(x, 1) if how == "recv" else dist.all_reduce(x, async_op=True)
    caught = catch(work.wait, timedelta(milliseconds=100))
    world.tell("expired")
    work.wait()
    assert x.tolist() == [1] * 4
    dist.barrier()
    return caught


@pytest.mark.parametrize("how", ["recv", "all_reduce"])
def test_a_wait_that_expires_harms_nothing(how: str) -> None:
    """In Gloo, if it is for a message, it ends every connection of the group."""
    caught = run_ranks(2, _wait_twice, how, environment=GLOO)[0]
    assert caught is not None and caught.kind == "CollectiveTimeoutError"
    assert "the operation goes on" in caught.text
    assert 0.1 <= caught.seconds < SOON

"""What ends a wait, over shared memory and over Gloo: its expiry, a timeout, Ctrl-C, a death."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch, interrupted_in
from support.on_ranks import TRANSPORTS
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.serial  # short times are compared

MANY = 1 << 22  # more than a ring or a socket holds

# Calls that wait for a peer, or return a work that does.
STARTS: dict[str, Callable[[int], Any]] = {
    "all_reduce later": lambda peer: dist.all_reduce(torch.zeros(4), async_op=True),
    "recv later": lambda peer: dist.irecv(torch.zeros(4), peer),
}


def _waited(start: Callable[[int], Any], peer: int) -> Any:
    return start(peer).wait()


WAITS: dict[str, Callable[[int], Any]] = {
    "all_reduce": lambda peer: dist.all_reduce(torch.zeros(MANY)),
    "barrier": lambda peer: dist.barrier(),
    "reduce_scatter_tensor": lambda peer: dist.reduce_scatter_tensor(
        torch.zeros(4), torch.zeros(4 * dist.get_world_size())
    ),
    "recv": lambda peer: dist.recv(torch.zeros(4), peer),
    "recv from any": lambda peer: dist.recv(torch.zeros(4)),
    "send": lambda peer: dist.send(torch.zeros(MANY), peer),
    **{how: partial(_waited, start) for how, start in STARTS.items()},
}
MESSAGES = ["recv", "recv from any", "send", "recv later"]
OVER_GLOO = [("gloo", how) for how in ("all_reduce", "all_reduce later", *MESSAGES[:3])]


def _wait_twice(world: World, how: str, count: int) -> Caught | None:
    world.init()
    dist.barrier()
    x = torch.zeros(count)
    if world.rank == 1:
        world.hear("expired")
        if how == "recv":
            dist.send(x + 1, 0)
        else:
            dist.all_reduce(x + 1)
        dist.barrier()
        return None
    work: Any = dist.irecv(x, 1) if how == "recv" else dist.all_reduce(x, async_op=True)
    caught = catch(work.wait, timedelta(milliseconds=100))
    assert not work.is_completed()
    world.tell("expired")
    work.wait()
    assert x.eq(1).all()
    dist.barrier()
    return caught


@pytest.mark.parametrize(
    ("transport", "how", "count"),
    [
        ("auto", "all_reduce", 10),
        ("auto", "all_reduce", 1 << 20),
        *((transport, "recv", 4) for transport in TRANSPORTS),
        ("gloo", "all_reduce", 4),
    ],
)
def test_a_wait_that_expires_harms_nothing(transport: str, how: str, count: int) -> None:
    """In Gloo, if it is for a message, it ends every connection of the group."""
    caught = run_ranks(2, _wait_twice, how, count, environment=TRANSPORTS[transport])[0]
    assert caught.kind == "CollectiveTimeoutError"
    assert "the operation goes on" in caught.text
    assert 0.1 <= caught.seconds < SOON
    assert (caught.peer, caught.operation) == (1, how) or transport == "gloo"


def _one_is_late(world: World, how: str) -> list[Caught]:
    world.init()
    dist.barrier()
    if world.rank == 1:
        world.hear("given up")
        return [catch(dist.barrier)]
    caught = [catch(WAITS[how], 1), catch(dist.barrier)]
    world.tell("given up")
    return caught


@pytest.mark.parametrize(("transport", "how"), [("auto", "recv"), *OVER_GLOO])
def test_a_timeout_names_the_peer_and_ends_the_group(transport: str, how: str) -> None:
    environment = TRANSPORTS[transport]
    caught, [other] = run_ranks(2, _one_is_late, how, group_timeout=0.7, environment=environment)
    assert caught[0].kind == caught[1].kind == "CollectiveTimeoutError"
    assert caught[0].operation in how and caught[0].rank == 0
    assert caught[0].peer == (None if "all_reduce" in how else 1)
    assert 0.65 <= caught[0].seconds < SOON
    assert other.kind == "CollectiveTimeoutError"
    if transport == "auto":
        assert caught[0].seconds >= 0.7
        assert "recv(float32, 4 elements) from rank 1, tag 0" in caught[0].text


def _interrupt(world: World, transport: str, how: str) -> list[Caught]:
    world.init()
    dist.barrier()
    if world.rank == 1:
        if transport == "gloo":  # waits until the other's connections end
            return [catch(dist.recv, torch.zeros(4), 0, tag=9)]
        world.hear("interrupted")  # although the peer had done its part
        return [catch(WAITS[how], 0), catch(dist.barrier)]
    call = STARTS[how](1).wait if how in STARTS else partial(WAITS[how], 1)
    caught = [catch(interrupted_in, call), catch(call), catch(dist.all_reduce, torch.zeros(4))]
    world.tell("interrupted")
    start = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - start < SOON
    return caught


@pytest.mark.parametrize(
    ("transport", "how"),
    [("auto", how) for how in ("all_reduce", "barrier", "all_reduce later", "recv later")]
    + OVER_GLOO,
)
def test_ctrl_c_ends_a_blocked_call_at_once(transport: str, how: str) -> None:
    environment = TRANSPORTS[transport]
    own, peers = run_ranks(2, _interrupt, transport, how, environment=environment)
    assert [error.kind for error in own] == ["KeyboardInterrupt", *["GroupPoisonedError"] * 2]
    assert 0.25 < own[0].seconds < SOON
    assert "rank 0 was interrupted in" in own[2].text
    for error in peers:
        assert error.seconds < SOON
        assert (error.kind, error.peer) == ("GroupPoisonedError", 0)
        name = how.split()[0]
        if transport == "auto" and name == "recv":
            name = "recv(float32, 4 elements) from rank 1"
        assert f"was interrupted in {name}" in error.text


def _die(world: World, hold: bool) -> None:
    if hold and os.fork() == 0:  # a child holds every socket of this process
        for rank in (0, 2):
            world.hear(f"known to {rank}")
        os._exit(0)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


def _lose_one(world: World, how: str, hold: bool) -> tuple[list[Caught], float]:
    """Let rank 0 wait for rank 1, which dies; and rank 2 for that one too, or for rank 0."""
    world.init()
    dist.barrier()
    died = time.monotonic() + 0.3
    if world.rank == 1:
        _die(world, hold)
    first = catch(WAITS[how], 1 if world.rank == 0 else 0)
    world.tell(f"known to {world.rank}")
    other = 0 if world.rank else world.size - 1
    return [first, catch(dist.send, torch.zeros(1), other), catch(dist.barrier)], first.at - died


@pytest.mark.parametrize(
    ("transport", "how", "hold"),
    [
        *(("auto", how, hold) for how in MESSAGES for hold in (False, True)),
        *(("gloo", how, hold) for how in WAITS for hold in (False, True)),
    ],
)
def test_who_waits_learns_of_a_death(transport: str, how: str, hold: bool) -> None:
    size = 3
    outcomes = run_outcomes(size, _lose_one, how, hold, environment=TRANSPORTS[transport])
    assert outcomes[1].exitcode == -signal.SIGKILL
    for outcome in outcomes[::2]:
        assert outcome.error is None, outcome.error
        caught, delay = outcome.value
        kinds = [(error.kind, error.peer) for error in caught]
        assert kinds == [("PeerLostError", 1)] * 3, caught
        assert (caught[0].rank, caught[0].world_size) == (outcome.rank, size)
        assert caught[0].operation in how
        assert "Look at its own output" in caught[0].text
        assert delay < SOON, delay
        for later in caught[1:]:
            assert "comes after the process group has failed" in later.text
            assert later.seconds < SOON

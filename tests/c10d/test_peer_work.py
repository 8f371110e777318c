"""The Work of send and recv: timeouts, aborts, and the errors of every operation on both sides."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch, interrupted_in
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.serial  # short times are compared

MANY = 1 << 22  # far more than a ring holds

MISMATCHES = {
    "shorter": lambda: torch.zeros(3),
    "longer": lambda: torch.zeros(5),
    "dtype": lambda: torch.zeros(4, dtype=torch.int32),
    "long": lambda: torch.zeros(100_000),
}


def _unlike(world: World, how: str, waits: bool) -> tuple[list[Caught], list[float]]:
    world.init()
    dist.barrier()
    got = torch.full((4,), 9.0)
    if world.rank == 0:
        return [catch(dist.recv, got, 1), catch(dist.barrier)], got.tolist()
    if world.rank == 2:  # in another exchange
        return [catch(dist.recv, got, 0), catch(dist.barrier)], got.tolist()
    caught = []
    if how == "long":
        caught.append(catch(dist.send, MISMATCHES[how](), 0))
    else:
        dist.send(MISMATCHES[how](), 0)
    if waits:
        time.sleep(0.3)
    caught.append(catch(dist.recv, got, 0))
    caught.append(catch(dist.send, got, 0))
    return caught, got.tolist()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("how", MISMATCHES)
def test_unlike_calls_are_a_mismatch_everywhere(how: str, waits: bool) -> None:
    outcomes = run_ranks(3, _unlike, how, waits)
    for caught, memory in outcomes:
        assert {error.kind for error in caught} == {"CollectiveMismatchError"}, caught
        assert memory == [9] * 4
        assert all(error.seconds < SOON for error in caught)
    first = outcomes[0][0][0]
    assert (first.operation, first.peer) == ("recv", 1)
    sent = MISMATCHES[how]()
    name = str(sent.dtype).removeprefix("torch.")
    assert "rank 0 called recv(float32, 4 elements) from rank 1, tag 0" in first.text
    assert f"rank 1 called send({name}, {sent.numel()} elements) to rank 0" in first.text
    assert f"send({name}, {sent.numel()} elements)" in outcomes[1][0][0].text


def _tags_of_nobody(world: World) -> Caught | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        for tag in (3, 7):
            dist.send(torch.ones(1), 0, tag=tag)
        world.tell("sent")
        world.hear("given up")
        return catch(dist.barrier)
    world.hear("sent")
    caught = catch(dist.recv, torch.zeros(1), 1, tag=4)
    world.tell("given up")
    return caught


def test_a_timeout_lists_what_nobody_received() -> None:
    caught, other = run_ranks(2, _tags_of_nobody, group_timeout=0.4)
    assert caught.kind == other.kind == "CollectiveTimeoutError"
    assert "has sent tags [3, 7] that nobody received" in caught.text, caught.text


def _die(world: World, after: float, hold: bool) -> None:
    if hold and os.fork() == 0:  # a child holds every socket of this process
        for rank in (0, 2):
            world.hear(f"known to {rank}")
        os._exit(0)
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


WAITS = {
    "recv": lambda peer: dist.recv(torch.zeros(4), peer),
    "recv from any": lambda peer: dist.recv(torch.zeros(4)),
    "send": lambda peer: dist.send(torch.zeros(MANY), peer),
    "irecv": lambda peer: dist.irecv(torch.zeros(4), peer).wait(),
}


def _lose_one(world: World, how: str, hold: bool) -> tuple[list[Caught], float]:
    """Let rank 0 exchange with rank 1, which dies; and rank 2 with rank 0, which is busy."""
    world.init()
    dist.barrier()
    died = time.monotonic() + 0.3
    if world.rank == 1:
        _die(world, 0.3, hold)
    first = catch(WAITS[how], 1 if world.rank == 0 else 0)
    world.tell(f"known to {world.rank}")
    later = [catch(dist.send, torch.zeros(1), 2 - world.rank), catch(dist.barrier)]
    return [first, *later], first.at - died


@pytest.mark.parametrize("hold", [False, True], ids=["", "forked holder"])
@pytest.mark.parametrize("how", WAITS)
def test_who_waits_learns_of_a_death(how: str, hold: bool) -> None:
    outcomes = run_outcomes(3, _lose_one, how, hold)
    assert outcomes[1].exitcode == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught, delay = outcome.value
        assert [(error.kind, error.peer) for error in caught] == [("PeerLostError", 1)] * 3, caught
        assert caught[0].operation in how and caught[0].world_size == 3
        assert delay < SOON, delay
        assert all(error.seconds < SOON for error in caught[1:])


def _one_is_late(world: World) -> list[Caught] | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        world.hear("given up")
        return [catch(dist.barrier)]
    caught = [catch(dist.recv, torch.zeros(4), 1), catch(dist.barrier)]
    world.tell("given up")
    return caught


def test_a_timeout_names_the_peer_and_ends_the_group() -> None:
    caught, [other] = run_ranks(2, _one_is_late, group_timeout=0.5)
    assert caught[0].kind == caught[1].kind == other.kind == "CollectiveTimeoutError"
    assert (caught[0].peer, caught[0].operation) == (1, "recv")
    assert "recv(float32, 4 elements) from rank 1, tag 0" in caught[0].text
    assert 0.5 <= caught[0].seconds < SOON


def _wait_twice(world: World) -> Caught | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        world.hear("expired")
        dist.send(torch.ones(4), 0)
        dist.barrier()
        return None
    x = torch.zeros(4)
    work = dist.irecv(x, 1)
    assert work is not None
    caught = catch(work.wait, timedelta(milliseconds=100))
    world.tell("expired")
    work.wait()
    assert x.tolist() == [1] * 4
    dist.barrier()
    return caught


def test_a_wait_that_expires_harms_nothing() -> None:
    caught = run_ranks(2, _wait_twice)[0]
    assert caught.kind == "CollectiveTimeoutError"
    assert "the operation goes on" in caught.text
    assert 0.1 <= caught.seconds < SOON


def _one_leaves(world: World) -> tuple[list[float], Caught] | None:
    """Let a rank leave: what was sent before arrives, and nothing else."""
    world.init()
    dist.barrier()
    if world.rank == 1:
        dist.send(torch.ones(2), 0)
        dist.destroy_process_group()
        time.sleep(1)
        return None
    time.sleep(0.3)
    x = torch.zeros(2)
    dist.recv(x, 1)
    return x.tolist(), catch(dist.recv, x, 1)


def test_a_peer_that_left() -> None:
    (values, caught) = run_ranks(2, _one_leaves)[0]
    assert values == [1, 1]
    assert (caught.kind, caught.peer) == ("PeerLeftError", 1), caught


def _interrupt(world: World) -> list[Caught]:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(0.6)
        return [catch(dist.recv, torch.zeros(1), 0), catch(dist.barrier)]
    work = dist.irecv(torch.zeros(1), 1)
    assert work is not None
    return [catch(interrupted_in, work.wait), catch(work.wait), catch(dist.barrier)]


def test_ctrl_c() -> None:
    own, peers = run_ranks(2, _interrupt)
    assert [error.kind for error in own] == ["KeyboardInterrupt", *["GroupPoisonedError"] * 2]
    assert 0.25 < own[0].seconds < SOON
    for error in peers:
        assert (error.kind, error.peer) == ("GroupPoisonedError", 0)
        assert "was interrupted in recv(float32, 1 elements) from rank 1" in error.text


def _bad_arguments(world: World) -> list[Caught]:
    """Pass bad arguments, which concern the caller alone: the group stays as it is."""
    world.init()
    caught = []
    if world.rank == 0:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        caught = [
            catch(backend.send, [torch.zeros(1)], 1, -1),
            catch(backend.send, [torch.zeros(1)], 7, 0),
            catch(backend.recv, [torch.zeros(1)], 0, 0),
            catch(backend.recv, [torch.zeros(1), torch.zeros(1)], 1, 0),
        ]
    dist.barrier()
    return caught


def test_bad_arguments_harm_nothing() -> None:
    caught = run_ranks(2, _bad_arguments)[0]
    assert [error.kind for error in caught] == ["CollectiveArgumentError"] * 4

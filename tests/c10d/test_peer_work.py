"""send and recv, which Gloo does: right values, and the errors of every other operation."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.serial  # short times are compared

MANY = 1 << 22  # more than a socket holds


def _exchange(world: World) -> None:
    world.init()
    rank, size = world.rank, world.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 1 << 18):
        got = torch.full((count,), -1.0)
        works = [dist.isend(torch.full((count,), float(rank)), after, tag=3)]
        works.append(dist.irecv(got, before, tag=3))
        for work in works:
            assert work is not None
            work.wait()
            assert work.is_completed() and work.is_success()
            work.wait()  # again
        assert got.tolist() == [float(before)] * count
    if rank == 0:
        seen = []
        for _ in range(size - 1):
            x = torch.zeros(1)
            source = dist.recv(x)  # from any rank
            assert x.item() == source
            seen.append(source)
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()  # else a rank's next message could be taken from any rank's
    x, y = torch.ones(2) * rank, torch.zeros(2)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
    ):
        work.wait()
    assert y.tolist() == [before] * 2
    objects: list[Any] = [{"from": rank}] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(objects, dst=1)
    elif rank == 1:
        dist.recv_object_list(objects, src=0)
        assert objects == [{"from": 0}]
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_values(size: int) -> None:
    run_ranks(size, _exchange)


def _die(after: float, hold: bool) -> None:
    if hold and os.fork() == 0:  # a child holds every socket of this process
        time.sleep(4)
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
    """Rank 0 exchanges with rank 1, which dies; rank 2 with rank 0, which is busy."""
    world.init()
    dist.barrier()
    died = time.monotonic() + 0.3
    if world.rank == 1:
        _die(0.3, hold)
    first = catch(WAITS[how], 1 if world.rank == 0 else 0)
    later = [catch(dist.send, torch.zeros(1), 2 - world.rank), catch(dist.barrier)]
    return [first, *later], first.at - died


@pytest.mark.parametrize("hold", [False, True], ids=["", "forked holder"])
@pytest.mark.parametrize("how", WAITS)
def test_who_waits_learns_of_a_death(how: str, hold: bool) -> None:
    outcomes = run_outcomes(3, _lose_one, how, hold, timeout=30)
    assert outcomes[1].exitcode == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught, delay = outcome.value
        assert [(error.kind, error.peer) for error in caught] == [("PeerLostError", 1)] * 3, caught
        assert caught[0].operation in how and caught[0].world_size == 3
        assert delay < 1.5, delay
        assert all(error.seconds < 0.1 for error in caught[1:])


def _one_is_late(world: World) -> list[Caught] | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(1.2)
        return [catch(dist.barrier)]
    return [catch(dist.recv, torch.zeros(4), 1), catch(dist.barrier)]


def test_a_timeout_names_the_peer_and_ends_the_group() -> None:
    caught, [other] = run_ranks(2, _one_is_late, group_timeout=0.5)
    assert caught[0].kind == caught[1].kind == other.kind == "CollectiveTimeoutError"
    assert (caught[0].peer, caught[0].operation) == (1, "recv")
    assert "recv(float32, 4 elements) from rank 1, tag 0" in caught[0].text
    assert 0.5 <= caught[0].seconds < 0.6


def _wait_twice(world: World) -> Caught | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(0.5)
        dist.send(torch.ones(4), 0)
        dist.barrier()
        return None
    x = torch.zeros(4)
    work = dist.irecv(x, 1)
    assert work is not None
    caught = catch(work.wait, timedelta(milliseconds=100))
    work.wait()
    assert x.tolist() == [1] * 4
    dist.barrier()
    return caught


def test_a_wait_that_expires_harms_nothing() -> None:
    """In Gloo it ends every connection of the group."""
    caught = run_ranks(2, _wait_twice)[0]
    assert caught.kind == "CollectiveTimeoutError"
    assert "the operation goes on" in caught.text
    assert 0.1 <= caught.seconds < 0.2


def _wait_after_a_pause(world: World) -> list[Caught]:
    """The thread that cuts waits into slices sleeps after a second without any."""
    world.init()
    dist.barrier()
    caught = []
    for pause in (0.0, 1.6, 1.6):
        time.sleep(pause)
        if world.rank == 1:
            time.sleep(0.4)
            dist.send(torch.ones(1), 0)
            continue
        work = dist.irecv(torch.zeros(1), 1)
        assert work is not None
        caught.append(catch(work.wait, timedelta(milliseconds=100)))
        work.wait()
    dist.barrier()
    return caught


def test_waits_are_cut_after_a_pause_too() -> None:
    for caught in run_ranks(2, _wait_after_a_pause)[0]:
        assert caught.kind == "CollectiveTimeoutError"
        assert 0.1 <= caught.seconds < 0.2, caught


def _one_leaves(world: World) -> tuple[list[float], Caught] | None:
    """What was sent before arrives; nothing else does."""
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
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    work = dist.irecv(torch.zeros(1), 1)
    assert work is not None
    return [catch(work.wait), catch(work.wait), catch(dist.barrier)]


def test_ctrl_c() -> None:
    own, peers = run_ranks(2, _interrupt)
    assert [error.kind for error in own] == ["KeyboardInterrupt", *["GroupPoisonedError"] * 2]
    assert 0.25 < own[0].seconds < 0.5
    for error in peers:
        assert (error.kind, error.peer) == ("GroupPoisonedError", 0)
        assert "was interrupted in recv(float32, 1 elements) from rank 1" in error.text


def _bad_arguments(world: World) -> list[Caught]:
    """They are the caller's alone: the group stays as it is."""
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
    assert len(caught) == 4
    assert [error.kind for error in caught[1:]] == ["CollectiveArgumentError"] * 3

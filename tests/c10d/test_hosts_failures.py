"""Ranks on two hosts die, stop, leave and are cut off: the others are told which, and soon."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import Host, cut, mend
from support.patience import SOON
from support.ranks import Outcome, World, run_outcomes, run_ranks
from support.stores import join_over

pytestmark = pytest.mark.serial  # network namespaces; times to errors are compared

SMALL, LARGE = 16, 1 << 20
SIZE = 4  # ranks 0 and 1 on the first host


def _join(world: World, hosts: list[Host], port: int) -> None:
    hosts[world.rank * 2 // world.size].enter()
    store = dist.TCPStore(hosts[0].address, port, world.size, world.rank == 0)
    join_over(store, world)
    dist.barrier()


def _for_ever(call: Callable[[], Any]) -> None:
    while True:
        call()


def _asynchronous(elements: int) -> None:
    tensors = [torch.zeros(elements) for _ in range(4)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# What all ranks do when the victim dies, and what the others do if it dies before.
LOOPS: dict[str, Callable[[], Any]] = {
    "small": lambda: dist.all_reduce(torch.zeros(SMALL)),
    "large": lambda: dist.all_reduce(torch.zeros(LARGE)),
    "asynchronous": lambda: _asynchronous(LARGE // 4),
    "all_to_all": lambda: dist.all_to_all_single(torch.empty(SIZE), torch.zeros(SIZE)),
}
CALLS: dict[str, Callable[[], Any]] = {
    **LOOPS,
    "broadcast": lambda: dist.broadcast(torch.zeros(LARGE), src=1),
    "barrier": dist.barrier,
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(3), torch.zeros(3 * SIZE)),
    "recv": lambda: dist.recv(torch.zeros(3), src=(dist.get_rank() + 1) % SIZE),
    "recv from any": lambda: dist.recv(torch.zeros(3)),
}


def _dies(
    world: World, hosts: list[Host], port: int, victims: list[int], how: str, within: bool
) -> Caught:
    _join(world, hosts, port)
    call = CALLS[how]
    if world.rank in victims:
        if within:
            signal.signal(signal.SIGALRM, _die)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            _for_ever(call)
        _die()
    return catch(_for_ever, call) if within else catch(call)


def _check_survivors(outcomes: list[Outcome], victims: list[int]) -> list[Caught]:
    told = []
    for outcome in outcomes:
        if outcome.rank in victims:
            assert outcome.exitcode == -signal.SIGKILL
            continue
        assert outcome.error is None, outcome.error
        caught: Caught = outcome.value
        assert caught.kind == "PeerLostError", caught
        assert caught.peer in victims, caught
        assert "died. Look at its own output" in caught.text
        told.append(caught)
    return told


@pytest.mark.parametrize("how", LOOPS)
def test_a_rank_dies_within_an_operation(hosts: list[Host], how: str) -> None:
    outcomes = run_outcomes(SIZE, _dies, hosts, 29800, [2], how, True)
    told = _check_survivors(outcomes, [2])
    assert max(one.at for one in told) - min(one.at for one in told) < SOON


@pytest.mark.parametrize("how", CALLS)
def test_a_rank_has_died_before(hosts: list[Host], how: str) -> None:
    outcomes = run_outcomes(SIZE, _dies, hosts, 29801, [1], how, False)
    for caught in _check_survivors(outcomes, [1]):
        assert caught.seconds < SOON


def test_a_host_dies(hosts: list[Host]) -> None:
    outcomes = run_outcomes(SIZE, _dies, hosts, 29802, [2, 3], "small", True)
    for caught in _check_survivors(outcomes, [2, 3]):
        assert caught.peer == 2
        assert "ranks 2, 3 died" in caught.text or "rank 2 (pid" in caught.text


def _any_call(random: Random, rank: int) -> None:
    """Call what all ranks call, if theirs are in the same state; no all_gather, which torch may
    not survive: its allgather frees tensors that Gloo is still sending."""
    elements = random.choice([1, 100, 5000, 300_000, 3_000_000])
    tensor, whole = torch.zeros(elements), torch.zeros(elements * SIZE)
    kind = random.randrange(6)
    if kind == 0:
        dist.all_reduce(tensor)
    elif kind == 1:
        dist.broadcast(tensor, src=random.randrange(SIZE))
    elif kind == 2:
        dist.reduce_scatter_tensor(tensor, whole)
    elif kind == 3:
        dist.all_to_all_single(whole, whole.clone())
    elif kind == 4:
        _asynchronous(elements)
    else:
        sent = dist.isend(tensor, (rank + 1) % SIZE)
        dist.recv(tensor.clone(), (rank - 1) % SIZE)
        assert sent is not None
        sent.wait()


def _dies_at_any_time(world: World, hosts: list[Host], port: int, seed: int) -> Caught:
    _join(world, hosts, port)
    random = Random(seed)
    after = random.uniform(0.02, 0.6)
    if world.rank == 1:
        # A thread: a handler would run between calls alone.
        threading.Timer(after, _die).start()
    caught = catch(_for_ever, lambda: _any_call(random, world.rank))
    start = time.monotonic()
    dist.destroy_process_group()  # also where Gloo's threads are still in a send
    assert time.monotonic() - start < SOON
    return caught


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_dies_at_any_time(hosts: list[Host], seed: int) -> None:
    outcomes = run_outcomes(SIZE, _dies_at_any_time, hosts, 29808, seed)
    told = _check_survivors(outcomes, [1])
    assert max(one.at for one in told) - min(one.at for one in told) < SOON


def _holder_lives(world: World, hosts: list[Host], port: int) -> Caught:
    _join(world, hosts, port)
    if world.rank == 1:
        child = os.fork()
        if child == 0:
            time.sleep(SOON)
            os._exit(0)
        Path(world.directory, "holder").write_text(str(child))
        _die()
    caught = catch(dist.all_reduce, torch.zeros(SMALL))
    if world.rank == 0:
        os.kill(int(Path(world.directory, "holder").read_text()), signal.SIGKILL)
    return caught


def test_a_forked_child_does_not_keep_its_parent_alive(hosts: list[Host]) -> None:
    for caught in _check_survivors(run_outcomes(2, _holder_lives, hosts, 29803), [1]):
        assert caught.seconds < SOON / 2


def _leaves(world: World, hosts: list[Host], port: int, how: str) -> Caught | None:
    _join(world, hosts, port)
    if world.rank != 1:
        return catch(dist.all_reduce, torch.zeros(SMALL))
    time.sleep(0.2)  # the others wait by then; if not, they are told the same
    if how == "abort":
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        return None
    try:
        raise ValueError("no such file")
    except ValueError:
        dist.destroy_process_group()
    return None


EXPECTED = {
    "exception": ("PeerLeftError", "because of ValueError: no such file"),
    "abort": ("GroupPoisonedError", "rank 1 called abort()"),
}


@pytest.mark.parametrize("how", EXPECTED)
def test_the_others_are_told_how_a_rank_left(hosts: list[Host], how: str) -> None:
    kind, text = EXPECTED[how]
    for caught in run_ranks(SIZE, _leaves, hosts, 29804, how):
        if caught is not None:
            assert (caught.kind, caught.peer) == (kind, 1), caught
            assert text in caught.text
            assert caught.seconds < SOON


def _stops(world: World, hosts: list[Host], port: int) -> Caught | None:
    _join(world, hosts, port)
    dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(seconds=6))
    world.tell(f"{world.rank} is ready")
    for rank in range(world.size):
        world.hear(f"{rank} is ready")
    if world.rank == 2:
        Path(world.directory, "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        return None
    start = time.monotonic()
    caught = catch(dist.all_reduce, torch.zeros(SMALL))
    assert time.monotonic() - start > 5, caught  # no cut link, though longer than its timeout
    world.tell(f"{world.rank} is done")
    if world.rank == 0:
        for rank in (1, 3):
            world.hear(f"{rank} is done")
        os.kill(int(Path(world.directory, "stopped").read_text()), signal.SIGCONT)
    return caught


def test_a_stopped_rank_is_late_and_not_cut_off(hosts: list[Host]) -> None:
    environment = {"FASTCOMM_LINK_TIMEOUT_S": "2"}
    told = run_ranks(SIZE, _stops, hosts, 29805, environment=environment)
    for caught in told[:2] + told[3:]:
        assert caught.kind == "CollectiveTimeoutError", caught
        assert "Timed out waiting 6000ms; rank 2 (pid" in caught.text, caught
        assert "does not answer: maybe it is stopped. Look" in caught.text
        assert "recv operation" not in caught.text


def _is_late(world: World, hosts: list[Host], port: int) -> Caught | None:
    _join(world, hosts, port)
    if world.rank == 3:
        world.hear("the end")
        return None
    dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(seconds=2))
    caught = catch(dist.all_reduce, torch.zeros(SMALL))
    world.tell("the end")
    return caught


def test_a_late_rank_is_named(hosts: list[Host]) -> None:
    for caught in run_ranks(SIZE, _is_late, hosts, 29806)[:3]:
        assert caught.kind == "CollectiveTimeoutError", caught
        assert "has issued 1 operation, this rank 2." in caught.text
        assert "rank 3 (pid" in caught.text


def _is_cut_off(world: World, hosts: list[Host], port: int, side: int) -> Caught:
    _join(world, hosts, port)
    world.tell(f"{world.rank} is ready")
    for rank in range(world.size):
        world.hear(f"{rank} is ready")
    if world.rank == 0:
        cut(hosts[side])
    return catch(_for_ever, lambda: dist.all_reduce(torch.zeros(LARGE)))


@pytest.mark.parametrize("side", [0, 1])
def test_a_cut_cable_is_known_in_seconds(hosts: list[Host], side: int) -> None:
    environment = {"FASTCOMM_LINK_TIMEOUT_S": "2"}
    try:
        told = run_ranks(SIZE, _is_cut_off, hosts, 29807, side, environment=environment)
    finally:
        mend(hosts[side])
    for rank, caught in enumerate(told):
        assert caught.kind == "PeerLostError", caught
        assert caught.peer == (2 if rank < 2 else 0), caught
        assert "ranks 2, 3" if rank < 2 else "ranks 0, 1" in caught.text
        assert "did not answer for 2 s: the network between" in caught.text
        assert "died" not in caught.text


def _leaves_a_sender(world: World, hosts: list[Host], port: int, how: str) -> Caught | None:
    _join(world, hosts, port)
    if world.rank == 3:
        time.sleep(0.5)
        dist.destroy_process_group()
        return None
    large = torch.zeros(40_000_000)
    if how == "broadcast":
        return catch(_for_ever, lambda: dist.broadcast(large, src=0))
    return catch(dist.send, large, 3) if world.rank == 0 else catch(dist.recv, large, 0)


@pytest.mark.parametrize("how", ["send", "broadcast"])
def test_who_sends_to_a_rank_that_leaves_is_told(hosts: list[Host], how: str) -> None:
    """A send for which the socket has no room is ended by nothing of Gloo's."""
    told = run_ranks(SIZE, _leaves_a_sender, hosts, 29809, how)
    for caught in told[:3]:
        assert (caught.kind, caught.peer) == ("PeerLeftError", 3), caught
        assert caught.seconds < SOON


def _drops_works(world: World, hosts: list[Host], port: int) -> list[int]:
    open_files = []
    for cycle in range(3):
        _join(world, hosts, port + cycle)
        for tag in range(3):
            dist.isend(torch.zeros(4), 1 - world.rank, tag=tag)
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()
        open_files.append(len(os.listdir("/proc/self/fd")))
    return open_files


def test_a_work_that_nobody_waits_for_keeps_no_link_open(hosts: list[Host]) -> None:
    for first, *later in run_ranks(2, _drops_works, hosts, 29810):
        assert later == [first] * 2

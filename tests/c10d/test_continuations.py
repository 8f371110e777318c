"""Continuations of futures: the thread they run on, their order, and what they may wait for."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import TRANSPORTS, on_ranks
from support.patience import ENDS, SOON, until
from support.ranks import World, run_outcomes
from support.stores import join_over, tcp_store

Future = Any


def _reduced(value: float, size: int = 4, group: dist.ProcessGroup | None = None) -> Future:
    """Start an all_reduce of equal values; all calls look the same."""
    work = dist.all_reduce(torch.full((size,), value), group=group, async_op=True)
    assert work is not None
    return work.get_future()


@on_ranks(2, 3, 4, environments=TRANSPORTS)
def test_what_continuations_issue_meets_its_own_kind(world: World) -> None:
    """Collectives of equal shape, issued inside and outside continuations, are never mixed up."""
    world.init()
    chance = random.Random(world.rank)
    order: list[int] = []

    def once_more(index: int, future: Future) -> list[float]:
        order.append(index)
        own = future.value()[0].clone()
        time.sleep(chance.uniform(0, 0.003))
        again = dist.all_reduce(own, async_op=True)
        assert again is not None
        last = again.get_future().wait()[0].clone()
        dist.all_reduce(last)  # synchronous, and of the same shape, too
        return last.tolist()

    futures = []
    for index in range(20):
        time.sleep(chance.uniform(0, 0.003))
        # Some are one-shot and end in the caller, some are for the progress thread.
        size = 4 if index % 3 else 200_000
        future = _reduced(float(2**index), size)
        futures.append(future.then(lambda done, index=index: once_more(index, done)[:4]))
    found = [future.wait() for future in futures]
    assert order == sorted(order)
    assert found == [[float(2**index) * world.size**3] * 4 for index in range(20)]


@on_ranks(3, environments=TRANSPORTS)
def test_operations_with_a_root_meet_their_own_kind(world: World) -> None:
    world.init()
    chance = random.Random(world.rank)

    def reduced_again(future: Future) -> list[float]:
        own = future.value()[0].clone()
        time.sleep(chance.uniform(0, 0.003))
        dist.reduce(own, 0)
        work = dist.reduce(own.fill_(1), 0, async_op=True)
        assert work is not None
        return work.get_future().wait()[0].tolist()

    futures = []
    for index in range(8):
        time.sleep(chance.uniform(0, 0.003))
        work = dist.reduce(torch.full((4,), float(index)), 0, async_op=True)
        assert work is not None
        futures.append(work.get_future().then(reduced_again))
        dist.reduce(torch.ones(4), 0)
    found = [future.wait() for future in futures]
    assert world.rank != 0 or found == [[3.0] * 4] * 8


@on_ranks(2)
def test_a_continuation_that_blocks_keeps_nobody_else_waiting(world: World) -> None:
    world.init()
    other = dist.new_group()
    dist.all_reduce(torch.ones(1), group=other)
    released = threading.Event()

    def block(future: Future) -> bool:
        return released.wait(ENDS)

    blocked = _reduced(1.0).then(block)
    behind = _reduced(1.0).then(lambda future: released.is_set())
    start = time.monotonic()
    for size in (4, 200_000):
        for group in (None, other):
            futures = [_reduced(1.0, size, group) for _ in range(5)]
            assert all(future.wait()[0].eq(world.size).all() for future in futures)
        assert _reduced(1.0, size, other).then(lambda future: 7).wait() == 7
    assert not blocked.done()
    assert not behind.done()
    assert time.monotonic() - start < 2 * SOON
    time.sleep(max(0.0, 1 - (time.monotonic() - start)))
    dist.barrier()
    released.set()
    assert blocked.wait()
    assert behind.wait()


@on_ranks(2)
def test_a_continuation_waits_for_continuations(world: World) -> None:
    world.init()
    threads = []

    def down(depth: int, future: Future) -> float:
        threads.append(threading.get_ident())
        value: float = future.wait()[0][0].item()
        if depth == 0:
            return value
        return _reduced(value).then(lambda done: down(depth - 1, done)).wait()

    assert _reduced(1.0).then(lambda done: down(3, done)).wait() == float(world.size**4)
    assert len(set(threads)) == 4
    assert threading.get_ident() not in threads


@on_ranks(2)
def test_futures_are_torchs_and_continue_on_a_thread_of_their_own(world: World) -> None:
    world.init()
    here = threading.get_ident()
    future = _reduced(1.0)
    assert isinstance(future, torch._C.Future)
    child = future.then(lambda done: (threading.get_ident(), done is future))
    assert isinstance(child, torch._C.Future)
    thread, same = child.wait()
    assert thread != here
    assert same
    assert future.done()
    assert child.value() == child.wait()
    # Complete or not, the continuation comes in its turn.
    assert future.then(lambda done: threading.get_ident()).wait() == thread
    called = threading.Event()
    future.add_done_callback(lambda done: called.set())
    assert called.wait(ENDS)
    # torch's own callback on one of our futures.
    both = torch.futures.collect_all([_reduced(1.0), _reduced(2.0)])
    assert [f.value()[0][0].item() for f in both.wait()] == [world.size, 2 * world.size]
    with torch.no_grad():
        without = _reduced(1.0).then(lambda done: torch.is_grad_enabled())
    with torch.enable_grad():
        enabled = _reduced(1.0).then(lambda done: torch.is_grad_enabled())
    assert (without.wait(), enabled.wait()) == (False, True)


def _raise(error: Exception) -> None:
    raise error


@on_ranks(2)
def test_callbacks_of_torchs_futures_take_the_way_of_who_attached_them(world: World) -> None:
    """Run callbacks of torch's own futures: in the calling thread or in another."""
    world.init()
    dist.all_reduce(torch.ones(1))
    for value in (2.0, 3.0):
        if world.rank == 1:
            time.sleep(0.2)  # complete here when it is asked for, but not there
        futures = [_reduced(1.0), _reduced(1.0, 100_000)]
        if world.rank == 0:
            futures[1].wait()
        both = torch.futures.collect_all(futures)
        child = both.then(lambda _, value=value: _reduced(value).wait()[0][0].item())
        assert child.wait() == 2 * value


@on_ranks(2)
def test_a_continuation_waits_for_futures_that_came_later(world: World) -> None:
    world.init()
    later: list[Future] = []
    ready = threading.Event()

    def wait(future: Future) -> bool:
        assert ready.wait(ENDS)
        torch.futures.collect_all(later).wait()
        return True

    child = _reduced(1.0).then(wait)
    later += [_reduced(1.0), _reduced(2.0)]
    ready.set()
    assert child.wait()


@on_ranks(2)
def test_an_error_in_a_continuation_is_its_futures(world: World) -> None:
    world.init()
    failed = _reduced(1.0).then(lambda done: _raise(ValueError("of the user")))
    with pytest.raises(RuntimeError, match="when running the callback: ValueError: of the user"):
        failed.wait()
    with pytest.raises(RuntimeError, match="of the user"):
        failed.then(lambda done: done.value()).wait()
    assert _reduced(1.0).then(lambda done: 1).wait() == 1


def _die_in_a_continuation(world: World) -> list[Caught]:
    world.init()

    def last(future: Future) -> torch.Tensor:
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        value: torch.Tensor = _reduced(1.0).wait()[0]
        return value

    child = _reduced(1.0).then(last)
    caught = [catch(child.wait), catch(child.then(lambda done: done.value()).wait)]
    # The group has failed as a whole.
    return [*caught, catch(dist.all_reduce, torch.ones(1))]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_in_a_continuation_is_the_groups(transport: str) -> None:
    survivor = run_outcomes(2, _die_in_a_continuation, environment=TRANSPORTS[transport])[0]
    assert survivor.error is None, survivor.error
    for caught in survivor.value:
        assert caught.kind == "PeerLostError", caught
        assert caught.peer == 1


@on_ranks(2)
def test_a_failure_outside_ends_what_continuations_wait_for(world: World) -> None:
    world.init()

    def wait(future: Future) -> None:
        _reduced(1.0).wait()  # forms the communicator
        if world.rank == 0:
            _reduced(1.0).wait()  # rank 1 never calls this one

    child = _reduced(1.0).then(wait)
    time.sleep(0.5)
    outside = catch(dist.all_reduce, torch.ones(1 + world.rank))
    assert outside.kind == "CollectiveMismatchError"
    assert world.rank == 1 or catch(child.wait).kind == outside.kind


@on_ranks(2, group_timeout=2, environments=TRANSPORTS)
def test_a_continuation_of_one_rank_alone_times_out(world: World) -> None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        _reduced(1.0).then(lambda done: None).wait()
        return world.hear("given up")
    caught = catch(_reduced(1.0).then(lambda done: _reduced(1.0).wait()).wait)
    world.tell("given up")
    assert caught.kind == "CollectiveTimeoutError", caught
    assert "rank 1" in caught.text or "ranks 1 did not arrive" in caught.text, caught


@on_ranks(4)
def test_a_continuation_issues_operations_of_another_group(world: World) -> None:
    """Sum over four ranks by pairs, the second sum in a continuation of the first."""
    world.init()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    near, far = pairs[world.rank // 2], across[world.rank % 2]
    futures = [
        _reduced(float(world.rank + 1), group=near).then(
            lambda done: _reduced(done.value()[0][0].item(), group=far).wait()[0][0].item()
        )
        for _ in range(5)
    ]
    assert [future.wait() for future in futures] == [10.0] * 5


@on_ranks(2, environments=TRANSPORTS)
def test_continuations_of_two_groups_cannot_share_a_third(world: World) -> None:
    """Each group has an order, but not one that ranks could agree on."""
    world.init()
    groups = [dist.new_group(), dist.new_group()]
    children = [
        _reduced(1.0, group=group).then(lambda done: _reduced(1.0).wait()) for group in groups
    ]

    def wait_for_both() -> None:
        for child in children:
            child.wait()

    caught = catch(wait_for_both)
    assert caught.kind in ("CollectiveArgumentError", "GroupPoisonedError"), caught
    assert "continuations of futures of two other process groups" in caught.text


@on_ranks(2, environments=TRANSPORTS)
def test_a_group_follows_one_that_was_destroyed(world: World) -> None:
    world.init()
    for value in (1.0, 2.0, 3.0):
        near = dist.new_group()
        child = _reduced(value, group=near).then(
            lambda done: _reduced(done.value()[0][0].item()).wait()[0][0].item()
        )
        assert child.wait() == 4 * value
        dist.destroy_process_group(near)


def _die_while_the_lane_forms(world: World) -> Caught | None:
    """Kill the rank that holds the store; the other looks for it in an earlier connection."""
    join_over(tcp_store(world), world)
    future = _reduced(1.0)
    future.wait()
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return catch(future.then(lambda done: _reduced(1.0).wait()).wait)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_with_the_store_is_named_soon(transport: str) -> None:
    variables = TRANSPORTS[transport]
    survivor = run_outcomes(2, _die_while_the_lane_forms, environment=variables)[1]
    assert survivor.error is None, survivor.error
    assert survivor.value.kind == "PeerLostError", survivor.value
    assert survivor.value.seconds < SOON


@on_ranks(2, environment=TRANSPORTS["gloo"])
def test_a_lane_without_descriptors_is_an_error(world: World) -> None:
    """Gloo would end the process."""
    world.init()
    dist.barrier()
    if world.rank == 1:
        limit = len(os.listdir("/proc/self/fd")) + 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    caught = catch(_reduced(1.0).then(lambda done: _reduced(1.0).wait()).wait)
    kind = "CommunicationSystemError" if world.rank == 1 else "GroupPoisonedError"
    assert caught.kind == kind, caught
    assert "rank 1: a group of 2 ranks needs up to" in caught.text


@on_ranks(2)
def test_a_group_is_destroyed_while_a_continuation_runs(world: World) -> None:
    world.init()
    dist.barrier()
    started, released = threading.Event(), threading.Event()

    def block(future: Future) -> None:
        started.set()
        released.wait(ENDS)

    child = _reduced(1.0).then(block)
    after = _reduced(1.0).then(lambda done: 5)
    assert started.wait(ENDS)
    dist.destroy_process_group()
    released.set()
    child.wait()
    assert after.wait() == 5
    world.init(name="again")
    assert _reduced(1.0).then(lambda done: done.value()[0][0].item()).wait() == world.size


_EXIT = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("fastcomm", store=dist.HashStore(), rank=0, world_size=1)
work = dist.all_reduce(torch.ones(4), async_op=True)
work.get_future().then(lambda done: {body})
time.sleep(0.2)
print("end", flush=True)
"""


@pytest.mark.parametrize(
    "body", ["time.sleep(0.5) or print('late', flush=True)", "time.sleep(600)"]
)
def test_a_program_ends_while_a_continuation_runs(body: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _EXIT.format(body=body)],
        capture_output=True,
        text=True,
        timeout=ENDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == (["end", "late"] if "late" in body else ["end"])
    assert ended.stderr == ""


_EXIT_WAITING = """
import sys, time, torch, torch.distributed as dist
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("fastcomm", store=dist.FileStore(path, 2), rank=rank, world_size=2)
dist.all_reduce(torch.ones(4), async_op=True).get_future().then(
    lambda done: dist.all_reduce(torch.ones(4))).wait()
if rank == 0:
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    future.then(lambda done: dist.all_reduce(torch.ones(4)))
    future.wait()
else:
    time.sleep(0.5)
    dist.all_reduce(torch.ones(4))
    time.sleep(6)
"""


def test_a_program_ends_while_a_continuation_waits_for_a_peer(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _EXIT_WAITING, str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=ENDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


@on_ranks(2)
def test_groups_leave_no_threads(world: World) -> None:
    world.init(name="first")
    _reduced(1.0, 1_000_000).wait()  # starts the progress thread
    _reduced(1.0).then(lambda done: _reduced(1.0).wait()).wait()
    dist.destroy_process_group()
    time.sleep(0.5)
    before = _threads()
    for turn in range(5):
        world.init(name=f"again {turn}")
        _reduced(1.0).then(lambda done: _reduced(1.0).wait()).wait()
        dist.destroy_process_group()
    until(lambda: _threads() <= before, "the threads end")

"""send and recv: right values, in any order."""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.messages import exchange
from support.on_ranks import TRANSPORTS, on_ranks
from support.patience import OPERATION, until
from support.ranks import World, run_outcomes

pytestmark = pytest.mark.serial  # short times are compared


@on_ranks(2, 3, environments=TRANSPORTS)
def test_values(world: World) -> None:
    world.init()
    exchange(world)
    rank = world.rank
    after, before = (rank + 1) % world.size, (rank - 1) % world.size
    receiving = dist.irecv(got := torch.zeros(3), before)
    assert receiving is not None
    future = receiving.get_future()  # for what moves only while somebody waits
    dist.send(torch.full((3,), float(rank)), after)
    assert future.wait()[0] is not None
    assert got.tolist() == [float(before)] * 3
    dist.barrier()


def _pattern(count: int, seed: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) * 0.5 + seed


@on_ranks(3, 4)
def test_batches_in_any_order(world: World) -> None:
    """Exchange short and long messages in every pair; each rank posts its own in its own order."""
    world.init()
    rank, size = world.rank, world.size
    chance = random.Random(rank)
    for round_number in range(10):
        operations, checks = [], []
        for peer in range(size):
            if peer == rank:
                continue
            for tag, count in enumerate((1, 500, 30_000, 0)):
                seed = 100 * round_number + tag
                got = torch.zeros(count)
                sent = _pattern(count, seed + 10_000 * rank)
                operations.append(dist.P2POp(dist.isend, sent, peer, tag=tag))
                operations.append(dist.P2POp(dist.irecv, got, peer, tag=tag))
                checks.append((got, _pattern(count, seed + 10_000 * peer)))
        chance.shuffle(operations)
        works = dist.batch_isend_irecv(operations)
        chance.shuffle(works)
        for work in works:
            work.wait()
            assert work.is_completed() and work.is_success()
        for got, wanted in checks:
            assert torch.equal(got, wanted)
    dist.barrier()


@on_ranks(2)
def test_hundreds_of_sends_before_a_receive(world: World) -> None:
    """Receive nothing before all is sent, and then from the last tag to the first."""
    world.init()
    count = 300
    sizes = [100_000 if tag % 60 == 0 else 10 for tag in range(count)]
    if world.rank == 0:
        works = [dist.isend(_pattern(sizes[tag], tag), 1, tag=tag) for tag in range(count)]
        assert works[1].is_completed() and not works[0].is_completed()
        world.tell("all is sent")
        for work in works:
            work.wait()
    else:
        world.hear("all is sent")
        for tag in reversed(range(count)):
            got = torch.zeros(sizes[tag])
            dist.recv(got, 0, tag=tag)
            assert torch.equal(got, _pattern(sizes[tag], tag)), tag
    dist.barrier()


@on_ranks(2)
def test_threads_and_collectives(world: World) -> None:
    """Exchange messages in several threads while the main thread runs collectives."""
    world.init()
    peer = 1 - world.rank
    failures = []

    def exchange(tag: int) -> None:
        try:
            for i in range(60):
                count = (3, 600, 40_000)[i % 3]
                got = torch.zeros(count)
                work = dist.isend(_pattern(count, i + 7 * world.rank), peer, tag=tag)
                dist.recv(got, peer, tag=tag)
                work.wait()
                assert torch.equal(got, _pattern(count, i + 7 * peer))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for i in range(60):
        sums = torch.ones(5 if i % 2 else 200_000)
        dist.all_reduce(sums, async_op=True).wait()
        assert sums[-1] == 2
    for thread in threads:
        thread.join()
    assert not failures, failures
    dist.barrier()


def _kinds_of_tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    return {
        "transposed": base.t(),
        "strided": base[:, ::2],
        "complex": torch.complex(base, -base),
        "strided complex": torch.complex(base, -base)[::2],
        "scalar": torch.tensor(4.5),
        "empty": torch.zeros(0, 3),
        "bool": base % 2 == 0,
        **{
            str(dtype): base.to(dtype)
            for dtype in (
                *(torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn),
                *(torch.float8_e5m2, torch.int8, torch.uint8, torch.int16, torch.int64),
            )
        },
        "long strided": torch.arange(200_000, dtype=torch.float32).reshape(2, -1).t(),
    }


@on_ranks(2)
def test_kinds_of_tensors(world: World) -> None:
    world.init()
    for tag, (name, tensor) in enumerate(_kinds_of_tensors().items()):
        if world.rank == 0:
            dist.send(tensor, 1, tag=tag)
            continue
        got = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        dist.recv(got, 0, tag=tag)
        same = got.view(torch.uint8) if "float8" in name else got
        wanted = tensor.view(torch.uint8) if "float8" in name else tensor
        assert torch.equal(same, wanted), name
    dist.barrier()


@on_ranks(2)
def test_futures(world: World) -> None:
    world.init()
    seen: list[Any] = []
    if world.rank == 0:
        time.sleep(0.2)
        dist.send(torch.full((3,), 7.0), 1)
        dist.send(torch.full((50_000,), 8.0), 1)
    else:
        for count in (3, 50_000):
            got = torch.zeros(count)
            work = dist.irecv(got, 0)
            assert work is not None
            future = work.get_future()
            done = future.then(lambda f: seen.append((f.value()[0] is not None, len(f.value()))))
            done.wait()  # nobody waits for the work itself
            assert work.is_completed() and got[-1] in (7, 8)
            assert work.get_future().wait()[0].data_ptr() == got.data_ptr()
        assert seen == [(True, 1)] * 2
    dist.barrier()


@on_ranks(2)
def test_polling_completes(world: World) -> None:
    """Only ask whether a work is complete, until it is."""
    world.init()
    if world.rank == 0:
        dist.send(torch.ones(2), 1)
        dist.recv(torch.zeros(1), 1)
    else:
        got = torch.zeros(2)
        work = dist.irecv(got, 0)
        assert work is not None
        until(work.is_completed, "the receive ends", 0)
        assert got.tolist() == [1, 1]
        dist.send(torch.zeros(1), 0)
    dist.barrier()


def _polled_in_vain(world: World) -> str:
    world.init()
    if world.rank == 1:
        time.sleep(0.2)
        os._exit(3)
    work = dist.irecv(torch.zeros(2), 1)
    assert work is not None
    until(work.is_completed, "the receive ends", 0.001)
    return catch(work.wait).kind


def test_who_polls_learns_of_a_death() -> None:
    assert run_outcomes(2, _polled_in_vain)[0].value == "PeerLostError"


@on_ranks(2)
def test_a_message_moves_while_its_rank_is_in_another_group(world: World) -> None:
    """Leave a first message to an engine that is busy with another group."""
    world.init()
    limit = timedelta(seconds=OPERATION)
    others, ours = dist.new_group(timeout=limit), dist.new_group(timeout=limit)
    large, value = torch.full((1 << 19,), 3.0), torch.ones(4)
    if world.rank == 0:
        work = dist.all_reduce(value, group=others, async_op=True)
        time.sleep(0.1)  # now it is busy
        dist.isend(large, 1, group=ours).wait()
        work.wait()
        time.sleep(0.3)  # the progress thread has nothing to do, and forgets
        sent = dist.isend(large, 1, group=ours)
        dist.all_reduce(value, group=others)  # drives the other group alone
        sent.wait()
    else:
        time.sleep(0.2)
        dist.recv(torch.empty_like(large), 0, group=ours)
        dist.all_reduce(value, group=others)
        got = torch.empty_like(large)
        dist.recv(got, 0, group=ours)
        assert torch.equal(got, large)
        dist.all_reduce(value, group=others)


@on_ranks(2)
def test_groups_one_after_the_other(world: World) -> None:
    """Reuse windows: a new group begins with empty rings."""
    world.init()
    for number in range(6):
        group = dist.new_group()
        peer = 1 - world.rank
        works = [dist.isend(torch.full((n,), float(number)), peer, group) for n in (2, 20_000)]
        for n in (2, 20_000):
            got = torch.zeros(n)
            dist.recv(got, peer, group)
            assert got[-1] == number
        for work in works:
            work.wait()
        if number % 2:  # left unread
            dist.isend(torch.full((2,), -1.0), peer, group, tag=9)
        dist.barrier()
        dist.destroy_process_group(group)

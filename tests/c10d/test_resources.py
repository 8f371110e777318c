"""Nothing grows: memory, descriptors and threads after many operations, groups and errors."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.patience import until
from support.ranks import World, run_ranks
from support.stores import join_over, tcp_store

import fastcomm

pytestmark = pytest.mark.serial  # memory, descriptors and threads are counted

SMALL, LARGE = 16, 1 << 20  # elements
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Usage:
    """What this process holds. Memory shared with peers counts once it was touched."""

    kilobytes: int
    descriptors: int
    threads: int


def _usage() -> Usage:
    _libc.malloc_trim(0)  # free memory does not count
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(os.listdir("/proc/self/fd")) - 1
    threads = len(os.listdir("/proc/self/task"))
    return Usage(pages * os.sysconf("SC_PAGESIZE") // 1024, descriptors, threads)


def _settled(want: Usage, more_descriptors: int) -> Usage:
    """Return the usage once other threads have closed what they close."""

    def is_settled() -> bool:
        now = _usage()
        return (
            now.descriptors <= want.descriptors + more_descriptors and now.threads <= want.threads
        )

    until(is_settled, f"{want}, at most {more_descriptors} descriptors more", 0.05)
    return _usage()


_stores: dict[str, dist.Store] = {}


def _init(world: World, name: str = "store") -> None:
    """Do as ``World.init``, over TCP: a file store gets slow as many groups' keys fill it.

    One store for all: now and then the second to connect to a new one waits for five seconds.
    """
    if "tcp" not in _stores:
        _stores["tcp"] = tcp_store(world)
    join_over(dist.PrefixStore(name, _stores["tcp"]), world)


def _one_round(world: World, number: int) -> int:
    """Run operations of every kind, and errors that leave the group whole; return how many."""
    small = torch.ones(SMALL)
    for _ in range(30):
        dist.all_reduce(small)
        dist.broadcast(small, src=number % world.size)
    works = [dist.all_reduce(torch.ones(SMALL), async_op=True) for _ in range(20)]
    futures = [work.get_future().then(lambda done: done.value()) for work in works]
    for work in works:
        work.wait()
    for future in futures:
        future.wait()
    parts = [torch.empty(SMALL) for _ in range(world.size)]
    for _ in range(9):
        dist.all_gather(parts, small)
    dist.barrier()
    done = 60 + 20 + 9 + 1
    if number % 10 == 0:  # through slots, in place, and asynchronously
        for tensor in (torch.ones(LARGE), fastcomm.empty(LARGE).zero_()):
            dist.all_reduce(tensor)
            dist.all_reduce(tensor, async_op=True).wait()
            done += 2
        # An expired wait: rank 0 calls first, the others when it has given up waiting.
        if world.rank == 0:
            work = dist.all_reduce(torch.ones(LARGE), async_op=True)
            assert catch(work.wait, timedelta(milliseconds=5)).kind == "CollectiveTimeoutError"
            world.tell(f"expired {number}")
        else:
            world.hear(f"expired {number}")
            work = dist.all_reduce(torch.ones(LARGE), async_op=True)
        work.wait()
        wrong = [torch.empty(SMALL + 1) for _ in range(world.size)]
        catch(dist.all_gather, wrong, small)
        done += 2
    return done


def _operate(world: World, operations: int) -> tuple[Usage, Usage, int]:
    world.init()
    number = done = 0
    while done < 2000:  # allocators, caches, lazy scratch
        done += _one_round(world, number)
        number += 1
    before, done = _usage(), 0
    while done < operations:
        done += _one_round(world, number)
        number += 1
    return before, _settled(before, 0), done


def test_operations_leave_nothing() -> None:
    """10,000 operations: small and large, synchronous and not, some of them failing."""
    for before, after, done in run_ranks(2, _operate, 10_000):
        assert done >= 10_000
        assert after.kilobytes < before.kilobytes + 1024, (before, after)


# A pidfd or two of former peers may wait for the next look.
PIDFDS = 4


def _cycle(world: World, cycles: int) -> tuple[Usage, Usage]:
    before = _usage()
    for number in range(cycles):
        if number == cycles // 4:
            before = _usage()
        _init(world, f"store-{number}")
        tensor = torch.full((SMALL,), float(world.rank + 1))
        dist.all_reduce(tensor)
        assert tensor[0] == sum(range(1, world.size + 1))
        if number % 10 == 0:
            dist.all_reduce(torch.ones(LARGE))
        dist.destroy_process_group()
    return before, _settled(before, PIDFDS)


def test_the_default_group_comes_and_goes() -> None:
    """100 times init_process_group and destroy_process_group in the same processes."""
    for before, after in run_ranks(2, _cycle, 100):
        assert after.kilobytes < before.kilobytes + 2048, (before, after)


def _come_and_go(world: World, groups: int) -> tuple[Usage, Usage]:
    _init(world)
    before = _usage()
    for number in range(groups):
        if number == groups // 10:
            before = _usage()
        group = dist.new_group(timeout=world.timeout)
        tensor = torch.ones(SMALL)
        dist.all_reduce(tensor, group=group)
        assert tensor[0] == world.size
        dist.destroy_process_group(group)
    dist.barrier()
    return before, _settled(before, PIDFDS)


@pytest.mark.parametrize("groups", [100, pytest.param(1000, marks=pytest.mark.release)])
def test_groups_come_and_go(groups: int) -> None:
    for before, after in run_ranks(2, _come_and_go, groups):
        assert after.kilobytes < before.kilobytes + 4 * groups + 1024, (before, after)


def _many_at_once(world: World, count: int) -> dict[str, Any]:
    _init(world)
    groups = [dist.new_group(timeout=world.timeout) for _ in range(count)]
    sums = set()
    for number, group in enumerate(groups):
        tensor = torch.full((SMALL,), float(number + world.rank))
        dist.all_reduce(tensor, group=group)
        sums.add(tensor[0].item() - 2 * number)
    works = [dist.all_reduce(torch.ones(SMALL), group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()
    large = torch.ones(LARGE)
    dist.all_reduce(large, group=groups[-1])
    native = [group._get_backend(torch.device("cpu")).native for group in groups]
    for group in groups:
        dist.destroy_process_group(group)
    return {"sums": sums, "large": large[-1].item(), "native": all(native)}


def test_200_groups_at_once() -> None:
    for told in run_ranks(2, _many_at_once, 200):
        assert told["sums"] == {1.0}
        assert told["large"] == 2.0
        assert told["native"]

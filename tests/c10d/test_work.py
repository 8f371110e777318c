"""Work and Future: what asynchronous calls return, and how they end."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World

pytestmark = pytest.mark.serial  # short times are compared


@on_ranks(2, 4, environments=TRANSPORTS)
def test_work_and_future(world: World) -> None:
    world.init()
    size, total = world.size, world.size * (world.size + 1) / 2
    for count in (1, 1_000_000):  # one-shot and pipelined
        tensor = torch.full((count,), float(world.rank + 1))
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        value = work.get_future().wait()
        assert isinstance(value, list) and len(value) == 1 and value[0] is not None
        assert work.is_completed() and work.is_success()
        assert value[0].eq(total).all()
        assert value[0].data_ptr() == tensor.data_ptr()
        assert work.wait() is True

        outputs = [torch.empty(count) for _ in range(size)]
        work = dist.all_gather(outputs, tensor, async_op=True)
        assert len(work.get_future().wait()) == size
        whole, part = torch.empty(size * count), torch.empty(count)
        work = dist.all_gather_into_tensor(whole, tensor, async_op=True)
        assert work.wait() and whole.eq(total).all()
        dist.reduce_scatter_tensor(part, whole, async_op=True).get_future().wait()
        assert part.eq(size * total).all()

        work = dist.broadcast(tensor, 0, async_op=True)
        work.wait()
        assert len(work.result()) == 1
    assert dist.barrier(async_op=True).get_future().wait() == []
    assert dist.all_reduce(torch.ones(1)) is None


@on_ranks(2)
def test_an_asynchronous_call_never_blocks(world: World) -> None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        world.hear("issued")
    tensors = [torch.ones(300_000) for _ in range(4)] + [torch.ones(1) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if world.rank == 0:
        world.tell("issued")
    # A synchronous call runs after what is pending, whose results are there before it returns.
    dist.all_reduce(last := torch.ones(1))
    assert all(t.eq(world.size).all() for t in [*tensors, last])
    assert all(work.wait() for work in works)


@on_ranks(2)
def test_two_groups_in_opposite_order_do_not_deadlock(world: World) -> None:
    world.init()
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    order = groups if world.rank == 0 else groups[::-1]
    for count in (10, 400_000):
        for _ in range(20):
            tensors = [torch.ones(count), torch.ones(count)]
            works = [
                dist.all_reduce(tensor, group=group, async_op=True)
                for tensor, group in zip(tensors, order, strict=True)
            ]
            works[0].wait()
            works[1].wait()
            assert all(tensor.eq(2).all() for tensor in tensors)


@on_ranks(2)
def test_a_dropped_work_still_completes(world: World) -> None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(0.3)
    for _ in range(50):
        dist.all_reduce(torch.ones(100_000), async_op=True)  # nobody holds work or tensor
    dist.all_reduce(last := torch.ones(1))
    assert last.item() == world.size


@on_ranks(2)
def test_operations_have_names_in_a_profile(world: World) -> None:
    world.init()
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(10), async_op=True).wait()
        dist.barrier()
    names = [event.key for event in profile.key_averages()]
    assert "fastcomm:all_reduce" in names and "fastcomm:barrier" in names

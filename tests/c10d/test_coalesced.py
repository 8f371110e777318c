"""Lists of large tensors, which are not joined: the same results as one call for each tensor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    ReduceScatterOptions,
)

Tensors = list[torch.Tensor]
COUNTS = [300_000, 1, 0, 200_000, 400_000]  # more than 256 KiB on average


def _values(counts: list[int], seed: int) -> Tensors:
    """Return random values; one tensor is strided."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(count, generator=generator) for count in counts]
    return [*made[:3], torch.stack([made[3], made[3]]).t()[:, 0], *made[4:]]


def _done(work: dist.Work | None, outputs: Tensors) -> None:
    """Wait, and check that an asynchronous call returns the outputs."""
    if work is None:
        return
    work.wait()
    shown = work.get_future().value()
    assert [tensor.data_ptr() for tensor in shown] == [tensor.data_ptr() for tensor in outputs]


def _equal(left: Tensors, right: Tensors) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("async_op", [False, True])
@on_ranks(2, 4)
def test_the_results_are_those_of_single_calls(world: World, async_op: bool) -> None:
    world.init()
    group, size = dist.distributed_c10d._get_default_group(), world.size

    tensors, wanted = (_values(COUNTS, world.rank) for _ in range(2))
    reduce = AllreduceCoalescedOptions()
    reduce.asyncOp = async_op
    _done(group.allreduce_coalesced(tensors, reduce), tensors)
    for tensor in wanted:
        dist.all_reduce(tensor)
    _equal(tensors, wanted)

    gather = AllgatherOptions()
    gather.asyncOp = async_op
    inputs = _values(COUNTS, world.rank)
    wholes, expected = ([torch.empty(size * n) for n in COUNTS] for _ in range(2))
    _done(group.allgather_into_tensor_coalesced(wholes, inputs, gather), wholes)
    for whole, part in zip(expected, inputs, strict=True):
        dist.all_gather_into_tensor(whole, part.contiguous())
    _equal(wholes, expected)
    lists = [[torch.empty(n) for n in COUNTS] for _ in range(size)]
    every = [tensor for of_rank in lists for tensor in of_rank]
    _done(group.allgather_coalesced(lists, inputs, gather), every)
    parts = [whole.chunk(size) if len(whole) else [whole] * size for whole in expected]
    _equal(every, [parts[i][rank] for rank in range(size) for i in range(len(COUNTS))])

    scatter = ReduceScatterOptions()
    scatter.asyncOp = async_op
    sums, single = ([torch.empty(n) for n in COUNTS] for _ in range(2))
    _done(group.reduce_scatter_tensor_coalesced(sums, expected, scatter), sums)
    for total, whole in zip(single, expected, strict=True):
        dist.reduce_scatter_tensor(total, whole)
    _equal(sums, single)
    dist.destroy_process_group()


@on_ranks(3)
def test_tensors_may_overlap(world: World) -> None:
    """Work in place, with one tensor's output as another's input, and with a tensor given twice."""
    world.init()
    group, size, count = dist.distributed_c10d._get_default_group(), world.size, 100_000
    wholes = [torch.full((size * count,), float(world.rank + 10 * i)) for i in range(2)]
    own = [whole.chunk(size)[world.rank] for whole in wholes]
    gather = AllgatherOptions()
    for inputs in (own, own[::-1]):
        before = [part[0].item() - world.rank for part in inputs]
        group.allgather_into_tensor_coalesced(wholes, inputs, gather).wait()
        for whole, base in zip(wholes, before, strict=True):
            assert (whole.view(size, -1)[:, [0, -1]] - base == torch.arange(size)[:, None]).all()
    twice = torch.ones(count)
    group.allreduce_coalesced([twice, twice], AllreduceCoalescedOptions()).wait()
    assert (twice == size).all()
    dist.destroy_process_group()


@on_ranks(2)
def test_lists_that_differ_late_touch_nothing(world: World) -> None:
    world.init()
    group = dist.distributed_c10d._get_default_group()
    counts = [100_000, 200_000, 300_000 if world.rank else 400_000]
    tensors = [torch.full((count,), 1.0) for count in counts]
    options = AllreduceCoalescedOptions()
    caught = catch(lambda: group.allreduce_coalesced(tensors, options).wait())
    assert caught.kind == "CollectiveMismatchError"
    assert all((tensor == 1).all() for tensor in tensors)
    for words in ("all_reduce_coalesced", "300000", "400000"):
        assert words in caught.text

"""Several tensors in one operation, sparse tensors, and the barriers."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World

SHAPES = [(3,), (), (2, 5), (0,), (70_000,)]


def _tensors(rank: int, dtype: torch.dtype = torch.float32, rows: int = 1) -> list[torch.Tensor]:
    """Return tensors whose sums over eight ranks stay below 256, which bfloat16 holds exactly."""
    made = [torch.arange(rows * max(1, torch.Size(shape).numel())) for shape in SHAPES]
    return [
        (each[: rows * torch.Size(shape).numel()] % 20 + rank).to(dtype)
        for each, shape in zip(made, SHAPES, strict=True)
    ]


def _backend() -> Any:
    assert dist.group.WORLD is not None
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def _lists(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        total = [sum(_tensors(k, dtype)[i] for k in range(size)) for i in range(len(SHAPES))]
        mine = _tensors(rank, dtype)
        mine[2] = torch.empty(20, dtype=dtype)[::2].copy_(mine[2])
        assert len(dist.all_reduce_coalesced(mine, async_op=True).wait()) == len(SHAPES)
        assert all(torch.equal(*pair) for pair in zip(mine, total, strict=True)), dtype
        lists = [[torch.empty_like(each) for each in _tensors(0, dtype)] for _ in range(size)]
        dist.all_gather_coalesced(lists, _tensors(rank, dtype))
        for peer, got in enumerate(lists):
            assert all(torch.equal(*pair) for pair in zip(got, _tensors(peer, dtype), strict=True))
        for how in ("at once", "block", "block with a device", "block, async"):
            wholes = [torch.empty(size * each.numel(), dtype=dtype) for each in _tensors(0)]
            sums = [torch.empty_like(each) for each in _tensors(0, dtype)]
            given, parts = _tensors(rank, dtype), _tensors(rank, dtype, rows=size)
            _into_tensors(how, wholes, given, sums, parts)
            for i, whole in enumerate(wholes):
                assert torch.equal(whole, torch.cat([_tensors(k, dtype)[i] for k in range(size)]))
            for i, got in enumerate(sums):
                every = sum(_tensors(k, dtype, rows=size)[i] for k in range(size))
                assert torch.equal(got, every[rank * len(got) :][: len(got)]), (how, i)


def _into_tensors(how: str, wholes: Any, given: Any, sums: Any, parts: Any) -> None:
    if how == "at once":
        group: Any = dist.group.WORLD
        group.allgather_into_tensor_coalesced(wholes, given).wait()
        group.reduce_scatter_tensor_coalesced(sums, parts).wait()
        return
    device = torch.device("cpu") if "device" in how else None
    options = {"device": device, "async_ops": "async" in how}
    for function, pairs in (
        (dist.all_gather_into_tensor, zip(wholes, given, strict=True)),
        (dist.reduce_scatter_tensor, zip(sums, parts, strict=True)),
    ):
        with dist.distributed_c10d._coalescing_manager(**options) as block:
            for output, whole in pairs:
                function(output, whole)
        if "async" in how:
            block.wait()


def _sparse(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        for dense in (0, 1):
            terms = []
            for peer in range(size):
                count = 0 if peer == 1 else peer + 3
                indices = torch.arange(2 * count).view(2, count) * (peer + 1) % 4  # some twice
                values = (torch.arange(count * 3 if dense else count) % 5 + peer).to(dtype)
                shape = (4, 4, 3) if dense else (4, 4)
                values = values.view(count, 3) if dense else values
                terms.append(torch.sparse_coo_tensor(indices, values, shape, check_invariants=True))
            wanted = sum(term.to_dense().to(torch.complex128) for term in terms)
            mine = terms[rank].clone()
            if dtype.is_floating_point and dense:
                mine.requires_grad_()
            work = dist.all_reduce(mine, async_op=bool(dense))
            assert work is None or work.wait()
            assert torch.equal(mine.detach().to_dense().to(torch.complex128), wanted), dtype
            assert mine.requires_grad == (dtype.is_floating_point and bool(dense))


def _lives(rank: int, size: int) -> None:
    """Check barriers, timeouts, and the end."""
    backend = _backend()
    backend.monitored_barrier(timedelta(seconds=30))
    backend.monitored_barrier(timedelta(seconds=30), wait_all_ranks=True)
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=[0])
    backend.set_timeout(timedelta(seconds=31))
    if size == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=60))
    other = group._get_backend(torch.device("cpu"))
    dist.barrier(group=group)
    if rank == 0:
        other.abort()
        other.abort()
    caught = catch(dist.barrier, group=group)
    assert caught.kind == "GroupPoisonedError" and "abort()" in caught.text, caught
    other.shutdown()
    other.shutdown()
    other.abort()
    assert "abort" in catch(dist.all_reduce, torch.ones(1), group=group).text
    dist.all_reduce(value := torch.ones(1))
    assert value.item() == size


@on_ranks(1, 2, 3, *(pytest.param(n, marks=pytest.mark.release) for n in (4, 5, 8)))
def test_lists_sparse_tensors_and_barriers(world: World) -> None:
    world.init()
    _lists(world.rank, world.size)
    _sparse(world.rank, world.size)
    _lives(world.rank, world.size)


@on_ranks(2)
def test_a_coalescing_block_belongs_to_its_thread(world: World) -> None:
    """Check that a block belongs to its thread: another thread neither ends nor empties it."""
    import threading

    world.init()
    backend = _backend()
    value = torch.zeros(40_000)
    backend._start_coalescing()
    if world.rank == 0:
        time.sleep(0.3)
        dist.send(value + 1, 1)
    else:
        dist.irecv(value, 0)
    other = threading.Thread(
        target=lambda: (backend._start_coalescing(), backend._end_coalescing())
    )
    other.start()
    other.join()
    backend._end_coalescing().wait()
    assert world.rank == 0 or value[-1].item() == 1


@on_ranks(2)
def test_a_continuation_of_a_block_may_wait(world: World) -> None:
    world.init()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    first, second = torch.ones(3), torch.full((2,), 2.0)
    backend._start_coalescing()
    dist.all_reduce(first)
    dist.all_reduce(second)
    work = backend._end_coalescing()

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        total = torch.stack([tensor[0] for tensor in done.value()])
        dist.all_reduce(total)  # waits for what only the progress thread can finish
        return total.sum()

    assert work.get_future().then(again).wait() == 2 * (2 + 4)

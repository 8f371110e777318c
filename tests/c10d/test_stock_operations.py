"""Operations that Gloo does inside a native group have the right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Tensors = list[torch.Tensor]
Issued = tuple[Any, Tensors, Tensors]  # the work or None, what it writes, what must be there


def _ramp(rank: int, count: int = 4) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) + 10 * rank


def _all_reduce_max(rank: int, size: int, async_op: bool) -> Issued:
    x = _ramp(rank)
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=async_op)
    return work, [x], [_ramp(size - 1)]


def _reduce(rank: int, size: int, async_op: bool) -> Issued:
    x = _ramp(rank)
    work = dist.reduce(x, dst=size - 1, async_op=async_op)
    wanted = [sum((_ramp(peer) for peer in range(size)), torch.zeros(4))]
    return work, [x] if rank == size - 1 else [], wanted if rank == size - 1 else []


def _gather(rank: int, size: int, async_op: bool) -> Issued:
    out = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    work = dist.gather(_ramp(rank), out, dst=0, async_op=async_op)
    return work, out or [], [_ramp(peer) for peer in range(size)] if rank == 0 else []


def _scatter(rank: int, size: int, async_op: bool) -> Issued:
    out = torch.zeros(4)
    parts = [_ramp(peer) for peer in range(size)] if rank == 0 else None
    return dist.scatter(out, parts, src=0, async_op=async_op), [out], [_ramp(rank)]


def _all_to_all_single(rank: int, size: int, async_op: bool) -> Issued:
    """Rank r sends r + 1 elements to everybody."""
    out = torch.zeros(size * (size + 1) // 2)
    work = dist.all_to_all_single(
        out,
        torch.full((size * (rank + 1),), float(rank)),
        [peer + 1 for peer in range(size)],
        [rank + 1] * size,
        async_op=async_op,
    )
    return work, [out], [torch.cat([torch.full((p + 1,), float(p)) for p in range(size)])]


OPERATIONS: list[Callable[[int, int, bool], Issued]] = [
    _all_reduce_max,
    _reduce,
    _gather,
    _scatter,
    _all_to_all_single,
]


def _run_them(world: World) -> None:
    world.init()
    for operation in OPERATIONS:
        work, got, wanted = operation(world.rank, world.size, False)
        assert work is None
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)), operation
    # All at once, native ones between them, the last awaited first.
    ones = [torch.ones(3) for _ in OPERATIONS]
    issued = []
    for operation, x in zip(OPERATIONS, ones, strict=True):
        issued.append(operation(world.rank, world.size, True))
        issued.append((dist.all_reduce(x, async_op=True), [x], [torch.full((3,), world.size)]))
    for work, got, wanted in reversed(issued):
        work.wait()
        assert work.is_completed() and work.is_success()
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    # Through the future alone; nobody holds the work.
    for operation in OPERATIONS:
        work, got, wanted = operation(world.rank, world.size, True)
        future = work.get_future()
        del work
        future.wait()
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)), operation
    dist.all_gather_object([None] * world.size, {"rank": world.rank})
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_results(size: int) -> None:
    run_ranks(size, _run_them)

"""torch.distributed.nn: collectives known to autograd have Gloo's values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn as dist_nn
from support.alike import Near, run_alike
from support.ranks import World

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Tensors = list[torch.Tensor]


def _split(x: torch.Tensor, size: int) -> Tensors:
    return [part.contiguous() for part in x.chunk(size)]


def _broadcast(x: torch.Tensor, rank: int, size: int) -> Tensors:
    return [dist_nn.broadcast(x, size - 1)]


def _gather(x: torch.Tensor, rank: int, size: int) -> Tensors:
    """Gather; zeros where nothing arrives; every rank must go backward."""
    return list(dist_nn.gather(x, dst=1))


def _scatter(x: torch.Tensor, rank: int, size: int) -> Tensors:
    return [dist_nn.scatter(_split(x, size), src=1)]


def _reduce(x: torch.Tensor, rank: int, size: int) -> Tensors:
    """Reduce; a rank that did not ask for the sum may hold a part of it, which is finite."""
    found = dist_nn.reduce(x, dst=1)
    return [found if rank == 1 else (0 * found).abs()]


def _reduce_scatter(x: torch.Tensor, rank: int, size: int) -> Tensors:
    parts = _split(x, size)
    return [dist_nn.reduce_scatter(torch.empty_like(parts[0]), parts)]


def _all_gather(x: torch.Tensor, rank: int, size: int) -> Tensors:
    return list(dist_nn.all_gather(x))


def _all_to_all(x: torch.Tensor, rank: int, size: int) -> Tensors:
    parts = _split(x, size)
    return list(dist_nn.all_to_all([torch.empty_like(parts[0]) for _ in parts], parts))


def _all_to_all_single(x: torch.Tensor, rank: int, size: int) -> Tensors:
    """Send r + 1 rows of the same x from rank r to everybody."""
    rows = x[:1].repeat(size * (rank + 1), 1)
    out = torch.empty(size * (size + 1) // 2, x.shape[1])
    sizes = [peer + 1 for peer in range(size)]
    return [dist_nn.all_to_all_single(out, rows, sizes, [rank + 1] * size)]


def _all_reduce(x: torch.Tensor, rank: int, size: int) -> Tensors:
    return [dist_nn.all_reduce(x), dist_nn.all_reduce(2 * x, op=dist.ReduceOp.SUM)]


CALLS: dict[str, Callable[[torch.Tensor, int, int], Tensors]] = {
    "broadcast": _broadcast,
    "gather": _gather,
    "scatter": _scatter,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_reduce": _all_reduce,
}


def _call(world: World) -> dict[str, Tensors]:
    results = {}
    for name, call in CALLS.items():
        x = torch.randn(2 * world.size, 3).requires_grad_()
        found = call(x * 1.5, world.rank, world.size)
        loss = sum((part.square().sum() * (1 + world.rank) for part in found), 0 * x.sum())
        loss.backward()
        assert x.grad is not None
        results[name] = [*found, x.grad]
    return results


@pytest.mark.parametrize("size", [2, 4])
def test_values_and_gradients_of_gloo(size: int) -> None:
    """Where torch scatters over Gloo, it uses all_to_all of lists here."""
    run_alike(size, _call, near=Near())

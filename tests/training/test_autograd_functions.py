"""torch.distributed.nn: collectives known to autograd have Gloo's values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def _reduce(x: torch.Tensor, rank: int, size: int) -> Tensors:
    """Reduce; a rank that did not ask for the sum may hold a part of it, which is finite."""
    found = dist_nn.reduce(x, dst=1)
    return [found if rank == 1 else (0 * found).abs()]


def _all_to_all_single(x: torch.Tensor, rank: int, size: int) -> Tensors:
    """Send r + 1 rows of the same x from rank r to everybody."""
    rows = x[:1].repeat(size * (rank + 1), 1)
    out = torch.empty(size * (size + 1) // 2, x.shape[1])
    sizes = [peer + 1 for peer in range(size)]
    return [dist_nn.all_to_all_single(out, rows, sizes, [rank + 1] * size)]


CALLS: dict[str, Callable[[torch.Tensor, int, int], Sequence[torch.Tensor]]] = {
    "broadcast": lambda x, rank, size: [dist_nn.broadcast(x, size - 1)],
    # Zeros where nothing arrives; every rank must go backward.
    "gather": lambda x, rank, size: dist_nn.gather(x, dst=1),
    "scatter": lambda x, rank, size: [dist_nn.scatter(_split(x, size), src=1)],
    "reduce": _reduce,
    "reduce_scatter": lambda x, rank, size: [
        dist_nn.reduce_scatter(torch.empty(2, x.shape[1]), _split(x, size))
    ],
    "all_gather": lambda x, rank, size: dist_nn.all_gather(x),
    "all_to_all": lambda x, rank, size: dist_nn.all_to_all(
        list(torch.empty(size, 2, x.shape[1])), _split(x, size)
    ),
    "all_to_all_single": _all_to_all_single,
    "all_reduce": lambda x, rank, size: [
        dist_nn.all_reduce(x),
        dist_nn.all_reduce(2 * x, op=dist.ReduceOp.SUM),
    ],
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

"""torch.distributed._functional_collectives: eagerly, and within one compiled graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from support.alike import Near, run_alike, run_each
from support.ranks import World

# all_gather_tensor and reduce_scatter_tensor have other names, too, from torch 2.13 on.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Tensors = list[torch.Tensor]


Group: TypeAlias = dist.ProcessGroup


def _all_to_all(x: torch.Tensor, rank: int, size: int, group: Group) -> Tensors:
    """Exchange evenly, and with rank r sending r + peer rows, rank 0 none to itself."""
    given = [rank + peer for peer in range(size)]
    rows = torch.arange(2.0 * sum(given)).view(-1, 2) + 100 * rank
    return [
        funcol.all_to_all_single(x, None, None, group),
        funcol.all_to_all_single(rows, given, given, group),
    ]


def _coalesced(x: torch.Tensor, rank: int, size: int, group: Group) -> Tensors:
    parts = [x, x[:, :3].contiguous() * 2, x * x]
    return [
        *funcol.all_reduce_coalesced(parts, "sum", group),
        *funcol.all_gather_into_tensor_coalesced(parts, group),
        *funcol.reduce_scatter_tensor_coalesced(parts, "sum", [0] * len(parts), group),
    ]


def _gradients(x: torch.Tensor, rank: int, size: int, group: Group) -> Tensors:
    """Take gradients through the collectives that autograd knows."""
    x = x.clone().requires_grad_()
    parts = [
        funcol.all_gather_tensor_autograd(x, 0, group),
        funcol.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        funcol.all_to_all_single_autograd(x, None, None, group),
    ]
    loss = sum(((i + 1 + rank) * part.square()).sum() for i, part in enumerate(parts))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    assert x.grad is not None
    return [loss, x.grad]


CALLS: dict[str, Callable[[torch.Tensor, int, int, Group], Tensors]] = {
    "all_reduce": lambda x, rank, size, group: [
        funcol.all_reduce(x, "sum", group),
        funcol.all_reduce(x * 3, "max", group),
        funcol.all_reduce(x.to(torch.bfloat16), "sum", group),
        funcol.all_reduce(x.to(torch.int64), "min", group),
    ],
    "all_gather_tensor": lambda x, rank, size, group: [
        funcol.all_gather_tensor(x, 0, group),
        funcol.all_gather_tensor(x, 1, group),
        funcol.all_gather_tensor(x[:0], 0, group),
        funcol.all_gather_tensor(x.t(), 0, group),  # not contiguous
    ],
    "reduce_scatter_tensor": lambda x, rank, size, group: [
        funcol.reduce_scatter_tensor(x, "sum", 0, group),
        funcol.reduce_scatter_tensor(x, "sum", 1, group),
        funcol.reduce_scatter_tensor(x.to(torch.int32), "sum", 0, group),
    ],
    "all_to_all_single": _all_to_all,
    # To the next rank, and in reverse; torch only permutes one-dimensional tensors.
    "permute_tensor": lambda x, rank, size, group: [
        funcol.permute_tensor(x.view(-1), [(peer + 1) % size for peer in range(size)], group),
        funcol.permute_tensor(x.view(-1), list(reversed(range(size))), group),
    ],
    "broadcast": lambda x, rank, size, group: [
        funcol.broadcast(x, src, group) for src in range(size)
    ],
    "coalesced": _coalesced,
    "autograd": _gradients,
}


def _call(name: str, world: World) -> Tensors:
    x = torch.randn(2 * world.size, 3 * world.size)
    found = CALLS[name](x, world.rank, world.size, dist.group.WORLD)
    return [value + 0 for value in found]  # each is waited for at its first use


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CALLS)
def test_results_of_gloo(name: str, size: int) -> None:
    run_each(size, _call, CALLS, name, near=Near())


def _five(x: torch.Tensor, size: int, group: Group) -> torch.Tensor:
    summed = funcol.all_reduce(x * 2, "sum", group)
    gathered = funcol.all_gather_tensor(summed.sin() + x, 0, group)
    mine = funcol.reduce_scatter_tensor(gathered * gathered, "sum", 0, group)
    turned = funcol.permute_tensor(mine.view(-1), [(p + 1) % size for p in range(size)], group)
    both = funcol.all_reduce_coalesced([turned.view_as(mine), mine], "sum", group)
    return funcol.all_to_all_single(both[0] - both[1].cos(), None, None, group)


def _compiled(world: World) -> Tensors:
    """Trace the graph for real; generate no kernels, which would take ten times as long."""
    x = torch.randn(world.size, 3)
    group = dist.group.WORLD
    assert group is not None
    expected = _five(x, world.size, group) + 0
    graph = torch.compile(_five, fullgraph=True, backend="aot_eager")
    found = [graph(x, world.size, group) for _ in range(2)]
    assert all(torch.equal(value, expected) for value in found)
    return found


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.release)])
def test_a_compiled_graph_computes_what_eager_calls_do(size: int) -> None:
    run_alike(size, _compiled, near=Near())

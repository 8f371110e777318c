"""ZeroRedundancyOptimizer: each rank steps a part of the parameters, and sends them to the others.

The losses are those of a plain optimizer under DistributedDataParallel.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.alike import Near, assert_alike, each, run_alike
from support.ranks import World
from support.small_models import batches_of, blocks, train
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
# Options of the optimizer, or None for a plain one.
OPTIMIZERS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "sharded": {},
    "in buckets": {"parameters_as_bucket_view": True},
}


def _make(ddp: DistributedDataParallel, options: dict[str, Any] | None) -> torch.optim.Optimizer:
    if options is None:
        return torch.optim.AdamW(ddp.parameters(), lr=0.01)
    # Not above: it compiles TorchScript, and warns of that.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(
        ddp.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01, **options
    )


def _train(name: str, world: World, uneven: bool) -> dict[str, Any]:
    """Train; with ``uneven`` rank r has r batches more than the first."""
    model = blocks()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = _make(ddp, OPTIMIZERS[name])
    batches = batches_of(world, STEPS + (world.rank if uneven else 0))
    joined = [ddp] if OPTIMIZERS[name] is None else [ddp, optimizer]
    with Join(joined) if uneven else nullcontext():
        losses = train(ddp, batches, lambda _: optimizer)
    return {"losses": losses, "parameters": list(model.parameters())}


def _train_all(world: World, uneven: bool) -> dict[str, Any]:
    return each(world, _train, OPTIMIZERS, uneven)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.release)])
def test_losses_are_those_of_a_plain_optimizer(size: int) -> None:
    for of_rank in run_alike(size, _train_all, False, near=Near(1e-3, 1e-4)):
        for name in OPTIMIZERS:
            assert_alike(of_rank[name], of_rank["plain"], Near(1e-5, 1e-6))


@pytest.mark.parametrize("size", [2, 3])
def test_uneven_inputs(size: int) -> None:
    """As over Gloo, a rank that has ended steps with the last gradients that it saw itself."""
    run_alike(size, _train_all, True, near=Near(1e-3, 1e-4))


def _go_on(world: World) -> list[Any]:
    """Send the state to the last rank, which saves it; all load it and go on."""
    ddp = DistributedDataParallel(blocks())
    optimizer: Any = _make(ddp, {})
    train(ddp, batches_of(world, 2), lambda _: optimizer)
    last = world.size - 1
    optimizer.consolidate_state_dict(to=last)
    told = [optimizer.state_dict() if world.rank == last else None]
    torch.distributed.broadcast_object_list(told, src=last)
    other = _make(ddp, {})
    other.load_state_dict(told[0])
    return [train(ddp, batches_of(world, 2), lambda _: other), told[0]]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.release)])
def test_a_state_that_was_gathered_loads(size: int) -> None:
    run_alike(size, _go_on, near=Near(1e-3, 1e-4))

"""ZeroRedundancyOptimizer stepping in DDP's communication hook while gradients still arrive.

torch refuses this over Gloo, where it may hang. Here the parameters must be those of a plain
optimizer to the bit: the sums are the same, and a step is the same wherever it is taken.
"""

from __future__ import annotations

import pytest
import torch
from support.alike import assert_alike, plain
from support.ranks import World, run_ranks
from support.small_models import batches_of, blocks, loss_of, train
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
# The first backward passes of a bucketed model take no steps: torch learns the buckets then.
WITHOUT_STEP = {False: 2, True: 3}  # static_graph
SGD = {"lr": 0.2, "momentum": 0.9}  # as small_models.sgd

HOOKS = ["hook_with_zero_step", "hook_with_zero_step_interleaved"]
# A hook's name, shard_buckets, static_graph.
OPTIONS = [
    *((name, shard_buckets, False) for name in HOOKS for shard_buckets in (False, True)),
    (HOOKS[1], True, True),
]

Trained = tuple[list[float], list[torch.Tensor]]


def _ddp(static_graph: bool) -> DistributedDataParallel:
    """Return a DDP with several buckets, so that one is stepped while others are reduced."""
    return DistributedDataParallel(
        blocks(), bucket_cap_mb=0.0005, gradient_as_bucket_view=True, static_graph=static_graph
    )


def _plain(world: World) -> Trained:
    ddp = _ddp(static_graph=False)
    return train(ddp, batches_of(world, STEPS)), plain(list(ddp.parameters()))


def _overlapped(world: World, name: str, shard_buckets: bool, static_graph: bool) -> Trained:
    # Not above: they compile TorchScript, and warn of that.
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = _ddp(static_graph)
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, **SGD)
    hook = getattr(ddp_zero_hook, name)
    ddp.register_comm_hook(
        None, hook(default_hooks.allreduce_hook, ddp, zero, shard_buckets=shard_buckets)
    )
    losses = []
    for step in range(-WITHOUT_STEP[static_graph], STEPS):
        ddp.zero_grad()
        loss = loss_of(ddp, max(step, 0) * world.size + world.rank)
        loss.backward()
        losses.append(loss.item())
    return losses[-STEPS:], plain(list(ddp.parameters()))


def _train(world: World) -> tuple[Trained, list[Trained]]:
    world.init()
    return _plain(world), [_overlapped(world, *options) for options in OPTIONS]


@pytest.mark.parametrize("size", [2, 4])
def test_steps_within_hooks_are_those_of_a_plain_optimizer(size: int) -> None:
    for wanted, found in run_ranks(size, _train):
        for options, ours in zip(OPTIONS, found, strict=True):
            assert_alike(list(ours), list(wanted), where=str(options))

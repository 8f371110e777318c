"""FullyShardedDataParallel: every strategy trains as over Gloo, and as one process does.

Left out is what torch refuses without an accelerator: offloaded parameters, as it pins their
memory, and sync_module_states.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.alike import Near, assert_alike, assert_ranks_alike, each, plain, run_alike, run_both
from support.ranks import World
from support.small_models import Block, blocks, loss_of, sgd, train_in_one_process
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

STEPS = 2
BF16 = torch.bfloat16
VARIANTS: dict[str, Mapping[str, Any]] = {
    "full shard": {"sharding_strategy": ShardingStrategy.FULL_SHARD},
    "shard gradients": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "no shard": {"sharding_strategy": ShardingStrategy.NO_SHARD},
    "hybrid shard": {"sharding_strategy": ShardingStrategy.HYBRID_SHARD},
    "original parameters": {"use_orig_params": True, "forward_prefetch": True},
    "prefetch late": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "bf16": {"mixed_precision": MixedPrecision(BF16, reduce_dtype=BF16, buffer_dtype=BF16)},
    "bf16, sums in fp32": {"mixed_precision": MixedPrecision(BF16, reduce_dtype=torch.float32)},
}


def _wrapped(world: World, variant: str) -> FSDP:
    options = dict(VARIANTS[variant])
    if variant == "hybrid shard":
        shape = (world.size // 2, 2)
        options["device_mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts"))
    model = blocks()
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)


def _whole(model: FSDP) -> dict[str, torch.Tensor]:
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _train(variant: str, world: World) -> dict[str, Any]:
    model = _wrapped(world, variant)
    optimizer = sgd(model.parameters())
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step * world.size + world.rank)
        loss.backward()
        norms.append(model.clip_grad_norm_(1e6).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "norms": norms, "parameters": _whole(model)}


def _train_all(world: World) -> dict[str, Any]:
    return each(_train, VARIANTS, world)


@cache
def _both(size: int) -> tuple[list[Any], list[Any]]:
    return run_both(size, _train_all)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_as_over_gloo(variant: str, size: int) -> None:
    near = Near(0.05, 0.02) if "bf16" in variant else Near(1e-4, 1e-5)
    found, expected = ([of_rank[variant] for of_rank in ranks] for ranks in _both(size))
    assert_ranks_alike(found, expected, near)
    steps = [range(step * size, (step + 1) * size) for step in range(STEPS)]
    losses, parameters = train_in_one_process(steps)
    for rank, ours in enumerate(found):
        assert_alike(ours["losses"], [of_ranks[rank] for of_ranks in losses], near)
        assert_alike(ours["parameters"], plain(parameters), near)


def _accumulate(world: World) -> dict[str, Any]:
    """Take two batches per step: the first within no_sync(), which keeps whole gradients."""
    model = _wrapped(world, "full shard")
    optimizer = sgd(model.parameters())
    losses = []
    for step in range(STEPS):
        for part in range(2):
            with model.no_sync() if part == 0 else nullcontext():
                loss = loss_of(model, (2 * step + part) * world.size + world.rank)
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    return {"losses": losses, "parameters": _whole(model)}


def test_gradients_accumulate() -> None:
    run_alike(2, _accumulate)

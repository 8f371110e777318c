"""FullyShardedDataParallel: every strategy trains as over Gloo, and as one process does.

Offloaded parameters, whose memory torch pins, and sync_module_states are not tested: torch refuses
them without an accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.alike import Near, run_alike, run_each
from support.ranks import World
from support.small_models import (
    assert_as_in_one_process,
    batches_of,
    fsdp,
    mesh_of,
    train,
    train_in_pairs,
)
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

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
    mesh = {"device_mesh": mesh_of(world, 2)} if variant == "hybrid shard" else {}
    return fsdp(**VARIANTS[variant], **mesh)


def _whole(model: FSDP) -> dict[str, torch.Tensor]:
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _train(variant: str, world: World) -> dict[str, Any]:
    model, norms = _wrapped(world, variant), []
    losses = train(
        model,
        batches_of(world, STEPS),
        before_step=lambda: norms.append(model.clip_grad_norm_(1e6).item()),  # clips nothing
    )
    return {"losses": losses, "norms": norms, "parameters": _whole(model)}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_as_over_gloo(variant: str, size: int) -> None:
    near = Near(0.05, 0.02) if "bf16" in variant else Near(1e-4, 1e-5)
    found = run_each(size, _train, VARIANTS, variant, near=near)
    steps = [range(step * size, (step + 1) * size) for step in range(STEPS)]
    assert_as_in_one_process(found, steps, near)


def _accumulate(world: World) -> dict[str, Any]:
    """Take two batches per step: the first within no_sync(), which keeps whole gradients."""
    model = _wrapped(world, "full shard")
    context = {False: model.no_sync, True: nullcontext}
    losses = train_in_pairs(model, batches_of(world, 2 * STEPS), lambda last: context[last]())
    dist.barrier()
    return {"losses": losses, "parameters": _whole(model)}


def test_gradients_accumulate() -> None:
    run_alike(2, _accumulate)

"""fully_shard (FSDP2): in one and two dimensions, in bf16, offloaded, with accumulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.alike import Near, assert_alike, each, run_alike, run_each
from support.ranks import World
from support.small_models import (
    assert_as_in_one_process,
    batches_of,
    mesh_of,
    sharded,
    train,
    train_in_pairs,
)
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

STEPS = 2
BF16 = torch.bfloat16
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "keep whole after forward": {"reshard_after_forward": False},
    "bf16": {"mp_policy": MixedPrecisionPolicy(BF16, BF16)},
    "bf16, sums in fp32": {"mp_policy": MixedPrecisionPolicy(BF16, torch.float32)},
    "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "bf16 and offload": {
        "mp_policy": MixedPrecisionPolicy(BF16, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=False),
    },
}


def _whole(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        found[name] = parameter.full_tensor()
    return found


def _train(variant: str, world: World, dimensions: int) -> dict[str, Any]:
    model = sharded(mesh_of(world, dimensions), **VARIANTS[variant])
    norms = []

    def clip() -> None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        assert isinstance(norm, DTensor)
        norms.append(norm.full_tensor().item())

    losses = train(model, batches_of(world, STEPS), before_step=clip)
    parts = dict(model.named_parameters())
    return {"losses": losses, "norms": norms, "parts": parts, "parameters": _whole(model)}


@pytest.mark.parametrize(
    ("size", "dimensions"),
    [
        (2, 1),
        pytest.param(3, 1, marks=pytest.mark.release),
        pytest.param(4, 1, marks=pytest.mark.release),
        (4, 2),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_as_over_gloo(variant: str, size: int, dimensions: int) -> None:
    near = Near(0.05, 0.02) if "bf16" in variant else Near(1e-4, 1e-5)
    found = run_each(size, _train, VARIANTS, variant, dimensions, near=near)
    steps = [range(step * size, (step + 1) * size) for step in range(STEPS)]
    assert_as_in_one_process(found, steps, near)


WAYS: dict[str, Callable[[FSDPModule, bool], None]] = {
    "whole gradients": lambda model, last: model.set_requires_gradient_sync(last),
    "a sum over parts": lambda model, last: model.set_requires_all_reduce(last),
    "sums as they come": lambda model, last: None,
}


def _accumulate(way: str, world: World, dimensions: int) -> dict[str, Any]:
    """Take two batches per step; what is kept between them depends on the way."""
    model = sharded(mesh_of(world, dimensions))
    assert isinstance(model, FSDPModule)

    @contextmanager
    def part(last: bool) -> Iterator[None]:
        WAYS[way](model, last)
        model.set_is_last_backward(last)
        yield

    losses = train_in_pairs(model, batches_of(world, 2 * STEPS), part)
    return {"losses": losses, "parameters": _whole(model)}


@pytest.mark.parametrize(("size", "dimensions"), [(2, 1), (4, 2)])
def test_gradients_accumulate(size: int, dimensions: int) -> None:
    found = run_alike(size, each, _accumulate, tuple(WAYS), dimensions, near=Near(1e-4, 1e-5))
    ways = [of_way["parameters"] for of_way in found[0].values()]
    assert all(ways[0].keys() == other.keys() for other in ways)
    for other in ways[1:]:
        assert_alike(other, ways[0], Near(1e-4, 1e-5))

"""fully_shard (FSDP2): in one and two dimensions, in bf16, offloaded, with accumulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from support.alike import Near, assert_alike, assert_ranks_alike, each, plain, run_alike, run_both
from support.ranks import World
from support.small_models import Blocks, blocks, loss_of, sgd, train_in_one_process
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
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


def _mesh(world: World, shape: str) -> DeviceMesh:
    if shape == "1-D":
        return init_device_mesh("cpu", (world.size,))
    return init_device_mesh("cpu", (world.size // 2, 2), mesh_dim_names=("copies", "parts"))


def _sharded(mesh: DeviceMesh, options: dict[str, Any]) -> Blocks:
    model = blocks()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def _whole(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        found[name] = parameter.full_tensor()
    return found


def _train(variant: str, world: World, shape: str) -> dict[str, Any]:
    model = _sharded(_mesh(world, shape), VARIANTS[variant])
    optimizer = sgd(model.parameters())
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step * world.size + world.rank)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        assert isinstance(norm, DTensor)
        norms.append(norm.full_tensor().item())
        optimizer.step()
        losses.append(loss.item())
    parts = dict(model.named_parameters())
    return {"losses": losses, "norms": norms, "parts": parts, "parameters": _whole(model)}


def _train_all(world: World, shape: str) -> dict[str, Any]:
    return each(_train, VARIANTS, world, shape)


@cache
def _both(size: int, shape: str) -> tuple[list[Any], list[Any]]:
    return run_both(size, _train_all, shape)


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (2, "1-D"),
        pytest.param(3, "1-D", marks=pytest.mark.release),
        pytest.param(4, "1-D", marks=pytest.mark.release),
        (4, "2-D"),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_as_over_gloo(variant: str, size: int, shape: str) -> None:
    near = Near(0.05, 0.02) if "bf16" in variant else Near(1e-4, 1e-5)
    found, expected = ([of_rank[variant] for of_rank in ranks] for ranks in _both(size, shape))
    assert_ranks_alike(found, expected, near)
    steps = [range(step * size, (step + 1) * size) for step in range(STEPS)]
    losses, parameters = train_in_one_process(steps)
    for rank, ours in enumerate(found):
        assert_alike(ours["losses"], [of_ranks[rank] for of_ranks in losses], near)
        assert_alike(ours["parameters"], plain(parameters), near)


WAYS: dict[str, Callable[[FSDPModule, bool], None]] = {
    "whole gradients": lambda model, last: model.set_requires_gradient_sync(last),
    "a sum over parts": lambda model, last: model.set_requires_all_reduce(last),
    "sums as they come": lambda model, last: None,
}


def _accumulate(way: str, world: World, shape: str) -> dict[str, Any]:
    """Take two batches per step; what is kept between them depends on the way."""
    model = _sharded(_mesh(world, shape), {})
    assert isinstance(model, FSDPModule)
    optimizer = sgd(model.parameters())
    losses = []
    for step in range(STEPS):
        for part in range(2):
            WAYS[way](model, part == 1)
            model.set_is_last_backward(part == 1)
            loss = loss_of(model, (2 * step + part) * world.size + world.rank)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "parameters": _whole(model)}


def _accumulate_all(world: World, shape: str) -> dict[str, Any]:
    return each(_accumulate, WAYS, world, shape)


@pytest.mark.parametrize(("size", "shape"), [(2, "1-D"), (4, "2-D")])
def test_gradients_accumulate(size: int, shape: str) -> None:
    found = run_alike(size, _accumulate_all, shape, near=Near(1e-4, 1e-5))
    ways = [of_way["parameters"] for of_way in found[0].values()]
    assert all(ways[0].keys() == other.keys() for other in ways)
    for other in ways[1:]:
        assert_alike(other, ways[0], Near(1e-4, 1e-5))

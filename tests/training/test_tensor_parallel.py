"""Tensor and sequence parallelism, alone and below fully_shard: the losses of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.alike import Near, run_alike, run_each
from support.ranks import World
from support.small_models import Blocks, assert_as_in_one_process, blocks, train
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

STEPS = 3
NEAR = Near(1e-4, 1e-5)


def _split(model: Blocks, mesh: DeviceMesh, sequence: bool) -> Blocks:
    """Split layers by columns, then by rows; with ``sequence`` the rest by the second dimension."""
    for block in model.blocks:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            }
            inputs = PrepareModuleInput(
                input_layouts=(Replicate() if block is model.blocks[0] else Shard(1),),
                desired_input_layouts=(Shard(1),),
            )
            parallelize_module(block, mesh, inputs)
        parallelize_module(block, mesh, plan)
    head = ColwiseParallel(
        input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Replicate()
    )
    parallelize_module(model, mesh, {"head": head})
    return model


def _whole(model: nn.Module) -> dict[str, Any]:
    return {
        name: p.full_tensor() if isinstance(p, DTensor) else p.detach()
        for name, p in model.named_parameters()
    }


def _train(of: str, world: World) -> dict[str, Any]:
    """Train; all ranks have the same batches, since they are parts of one."""
    model = _split(blocks(), init_device_mesh("cpu", (world.size,)), of == "sequences")
    return {"losses": train(model, range(STEPS)), "parameters": _whole(model)}


@pytest.mark.parametrize("name", ["tensors", "sequences"])
@pytest.mark.parametrize("size", [2, 4])
def test_parts_of_layers(size: int, name: str) -> None:
    found = run_each(size, _train, ["tensors", "sequences"], name, near=NEAR)
    assert_as_in_one_process(found, [[step] for step in range(STEPS)], NEAR, width=size)


def _train_sharded(world: World) -> dict[str, Any]:
    """Train over 2 x 2 ranks: those of a column have the same batches."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _split(blocks(), mesh["tensor"], sequence=True)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh["data"])
    losses = train(model, range(world.rank // 2, 2 * STEPS, 2))
    return {"losses": losses, "parameters": _whole(model)}


def test_parts_of_layers_that_are_sharded() -> None:
    found = run_alike(4, _train_sharded, near=NEAR)
    assert_as_in_one_process(found, [[2 * s, 2 * s + 1] for s in range(STEPS)], NEAR, width=2)


def _loss_parallel(world: World) -> dict[str, Any]:
    """Compute the cross entropy while the classes lie on different ranks."""
    mesh = init_device_mesh("cpu", (world.size,))
    torch.manual_seed(3)
    logits, target = torch.randn(6, 9), torch.randint(9, (6,))
    parts = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        loss = nn.functional.cross_entropy(parts, target)
        loss.backward()
    whole = logits.clone().requires_grad_()
    nn.functional.cross_entropy(whole, target).backward()
    assert isinstance(parts.grad, DTensor)
    torch.testing.assert_close(parts.grad.full_tensor(), whole.grad)
    return {"loss": loss, "gradient": parts.grad}


@pytest.mark.parametrize("size", [2, 3])
def test_loss_over_parts(size: int) -> None:
    run_alike(size, _loss_parallel, near=NEAR)

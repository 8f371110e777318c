"""DistributedDataParallel with fused reductions on a GPU, which may stand for two devices, or on
simulated ones.

Whichever way gradients go, their bits are those of the CPU.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import fused, places
from support.ranks import World, run_ranks
from torch import nn

import fastcomm

pytestmark = pytest.mark.accelerator

FEW = "needs three devices"


def _reduced(world: World, kind: str) -> None:
    places.join(kind)
    world.init(f"cpu:fastcomm,{kind}:fastcomm")
    for wire in (None, torch.bfloat16):
        device = torch.device(kind, 0)
        grads = fused.moved(fused.gradients(world.rank), device)
        gaps = torch.full((6, 4), 7.0, device=device)
        gaps[:, ::2] = world.rank + 1.0
        result = fastcomm.fused_all_reduce_([*grads, gaps[:, ::2]], comm_dtype=wire, async_op=True)
        result.wait()
        lists = [fused.gradients(rank) for rank in range(world.size)]
        for grad, terms in zip(grads, zip(*lists, strict=True), strict=True):
            numbers = [fused.in_order(term) for term in terms]
            wanted = fused.reduced(numbers, True, 1.0, wire)
            assert grad.device == device
            assert torch.equal(fused.in_order(grad.cpu()), wanted)
        assert result.total_norm is not None
        assert gaps[:, 1::2].eq(7).all() and gaps[:, ::2].eq((world.size + 1) / 2).all()
        parts = [fused.part(grad.cpu(), 2) for grad in (*grads, gaps[:, ::2])]
        assert float(result.total_norm) == fused.norm(parts, 2)
    for grads, words in (
        ([torch.ones(1, device=kind).expand(5)], "overlaps itself"),
        ([torch.ones(3, device=kind, dtype=torch.int32)], "not floating-point"),
    ):
        with pytest.raises(ValueError, match=words):
            fastcomm.fused_all_reduce_(grads)
    dist.barrier()


# Gloo takes CUDA tensors, but no simulated ones.
@pytest.mark.parametrize("transport", ["auto", pytest.param("gloo", marks=pytest.mark.gpu)])
def test_gradients_on_a_device_have_the_bits_of_the_cpu(transport: str) -> None:
    run_ranks(3, _reduced, places.kind(), environment={"FASTCOMM_TRANSPORT": transport})


def _sparse(world: World) -> None:
    world.init()
    with pytest.raises(ValueError, match="gradient 0 is Sparse"):
        fastcomm.fused_all_reduce_([torch.eye(3, device="cuda").to_sparse()])


@pytest.mark.gpu  # the simulation has no sparse tensors
def test_sparse_gradients_are_refused() -> None:
    run_ranks(1, _sparse)


def _trained(world: World, kind: str, devices: list[int]) -> list[torch.Tensor]:
    """Train two processes with several replicas each, against stock DDP with one."""
    places.join(kind)
    world.init(f"cpu:fastcomm,{kind}:fastcomm")
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(kind)
    plain = copy.deepcopy(model)
    ours: Any = fastcomm.nn.parallel.DistributedDataParallel(model, devices, max_norm=1.0)
    stock: Any = nn.parallel.DistributedDataParallel(plain, [0])
    for ddp in (ours, stock):
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + world.rank)
            x = torch.randn(9, 16, generator=generator)
            optimizer.zero_grad()
            ddp(x).square().sum().backward()
            if ddp is stock:
                nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    "devices",
    [[0, 0], pytest.param([0, 1, 2], marks=pytest.mark.skipif(places.count() < 3, reason=FEW))],
)
def test_replicas_of_several_processes_train_as_stock_ddp_does(devices: list[int]) -> None:
    first, second = run_ranks(2, _trained, places.kind(), devices)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

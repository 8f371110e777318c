"""Gradients on devices that another backend serves: flat buckets, and all else on the device."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.fused import OPTIONS
from support.ranks import World, run_ranks
from support.tree import same_bits

import fastcomm
from fastcomm._distributed import device_engines as _device_engines
from fastcomm._distributed.device_engines import Factory

pytestmark = pytest.mark.usefixtures("simulated")


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    return sim.SimBackend(store, rank, size, timeout)


def _init(world: World, backend: str) -> torch.device:
    sim.register_backend()
    _device_engines.register("sim", Factory("simccl", _make, str))
    device = torch.device("sim", world.rank)
    torch.sim.set_device(device)
    world.init(backend)
    dist.all_reduce(torch.ones(1, device=device))
    return device


def _whole_numbers(rank: int) -> list[torch.Tensor]:
    """Return gradients whose sums are exact in every type and order."""
    shapes = [(5,), (70, 30), (0,), (6, 7), ()]
    dtypes = [torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16]
    made = []
    for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        generator = torch.Generator().manual_seed(10 * i + rank)
        made.append(torch.randint(-20, 20, shape, generator=generator).to(dtype))
    return [*made, made[1].t().contiguous().t()]


def _reduced(world: World, backend: str) -> None:
    device = _init(world, backend)
    all_gather = dist.all_gather
    for options in OPTIONS:
        if "scale" in options:
            options = {**options, "scale": 0.25}
        here = _whole_numbers(world.rank)
        there = [torch.empty_like(g, device=device).copy_(g) for g in here]
        expected = fastcomm.fused_all_reduce_(here, **options)
        dist.all_gather = None
        found = fastcomm.fused_all_reduce_(there, **options)
        dist.all_gather = all_gather
        for mine, theirs in zip(there, here, strict=True):
            assert mine.device == device and same_bits(mine.cpu(), theirs), options
        assert found.partial_norms.device == device
        assert same_bits(found.partial_norms.cpu(), expected.partial_norms), options
        assert found.found_inf.item() == 0
    # The sum would exceed the type's range.
    large = [torch.full((9,), 3e4, dtype=torch.float16, device=device)]
    assert fastcomm.fused_all_reduce_(large).found_inf.item() == 0
    assert large[0].unique().tolist() == [30000.0]
    there[0][2] = torch.inf
    assert fastcomm.fused_all_reduce_(there).found_inf.item() == 1
    residuals = [torch.full_like(g, 1e-3, dtype=torch.float32) for g in there[:2]]
    given = [g.clone() for g in there[:2]]
    fastcomm.fused_all_reduce_(given, comm_dtype=torch.bfloat16, residuals=residuals)
    assert residuals[1].abs().max().item() > 0 and residuals[1].unique().tolist() != [1e-3]
    for wrong in (residuals[::-1], [residual.to(torch.bfloat16) for residual in residuals]):
        with pytest.raises(ValueError, match="a residual is of float32 and like its gradient"):
            fastcomm.fused_all_reduce_(given, comm_dtype=torch.bfloat16, residuals=wrong)
    with pytest.raises(ValueError, match="not floating-point"):
        fastcomm.fused_all_reduce_([torch.ones(3, dtype=torch.int32, device=device)])


@pytest.mark.parametrize("size", [2, 4])
def test_of_a_group_of_that_backend(size: int) -> None:
    run_ranks(size, _reduced, "cpu:gloo,sim:simccl")


def test_of_a_group_of_ours_that_it_serves() -> None:
    environment = {"FASTCOMM_ROUTE": "nccl"}
    run_ranks(2, _reduced, "cpu:fastcomm,sim:fastcomm", environment=environment)

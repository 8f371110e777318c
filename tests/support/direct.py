"""Operations between processes with a simulated device each, and what they should give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from support.ranks import World
from support.tree import same_bits
from support.values import cancelling, special
from torch import nn

import fastcomm

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8]
ON_DEVICES = "reach each other's memory: they meet"
ON_HOST = "share pinned memory of the host: they meet"


def init(world: World) -> torch.device:
    """Join the default group, with a device of this rank's own; return it."""
    import sim

    sim.load()
    device = torch.device("sim", world.rank)
    torch.sim.set_device(device)
    world.init("cpu:fastcomm,sim:fastcomm")
    return device


def is_direct(
    tensor: torch.Tensor, operation: str = "all_reduce", way: str = ON_DEVICES, op: str = "sum"
) -> bool:
    """Tell whether our kernels serve an operation, in windows there."""
    return way in fastcomm.explain(operation, tensor, op=op).reason


def _values(dtype: torch.dtype, count: int, rank: int, seed: int) -> torch.Tensor:
    if not dtype.is_floating_point:
        return cancelling(dtype, count, rank, seed)
    values = torch.cat([special(dtype, rank), cancelling(dtype, count, rank, seed)])
    return values[:count].clone()


Place = Callable[[torch.Tensor], torch.Tensor]


def run_each(
    world: World,
    device: torch.device,
    dtype: torch.dtype,
    count: int,
    place: Place = lambda tensor: tensor,
) -> list[Any]:
    """Return what every operation gives on a device, for tensors that ``place`` puts somewhere."""
    rank, size = world.rank, world.size

    def made(seed: int, parts: int = 1) -> torch.Tensor:
        return place(_values(dtype, count * parts, rank, seed).to(device))

    results = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        dist.all_reduce(summed := made(1), op=op)
        dist.reduce(at_root := made(2), size - 1, op=op)
        dist.reduce_scatter_tensor(part := made(3), made(4, size), op=op)
        dist.reduce_scatter(other := made(5), list(made(6, size).chunk(size)), op=op)
        results += [summed, part, other] + ([at_root] if rank == size - 1 else [])
    dist.broadcast(sent := made(7), size // 2)
    dist.all_gather_into_tensor(whole := made(8, size), made(9))
    dist.all_gather(list(listed := made(10, size).chunk(size)), made(11))
    root = rank == 1
    gathered = list(made(12, size).chunk(size))
    dist.gather(made(13), gathered if root else None, 1)
    dist.scatter(own := made(14), list(made(15, size).chunk(size)) if root else None, 1)
    dist.all_to_all_single(exchanged := made(16, size), made(17, size))
    results += [sent, whole, *listed, own, exchanged] + (gathered if root else [])
    return results


def check_bits(
    world: World,
    device: torch.device,
    dtype: torch.dtype,
    count: int,
    place: Place = lambda tensor: tensor,
) -> None:
    """Compare every operation on a device with the same one on the CPU."""
    there = run_each(world, device, dtype, count, place)
    here = run_each(world, torch.device("cpu"), dtype, count)
    for found, expected in zip(there, here, strict=True):
        assert found.device == device
        assert same_bits(found.cpu(), expected), (dtype, count)


def reason_and_sum(world: World) -> tuple[str, list[float]]:
    """Return why all_reduce goes the way it goes, and what it gives, twice, for 1, 2, 3, ..."""
    device = init(world)
    data = torch.full((3,), float(world.rank + 1), device=device)
    for _ in range(2):
        dist.all_reduce(data)
    return fastcomm.explain("all_reduce", data).reason, data.tolist()


def small_net() -> nn.Module:
    """Return a model that is the same on every rank."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2)
    )


def train(world: World, model: nn.Module, device: torch.device, steps: int = 4) -> None:
    """Train on each rank's own batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(10 * step + world.rank)
        optimizer.zero_grad()
        model(torch.randn(5, 6).to(device)).square().mean().backward()
        optimizer.step()

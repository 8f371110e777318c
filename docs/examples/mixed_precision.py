"""Mixed precision with a loss scale, in three ways that train to the same losses.

    torchrun --nproc-per-node 2 docs/examples/mixed_precision.py stock clipped sharded

Each of these three functions is a whole training; docs/mixed-precision.md says when to take which.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastcomm

LR, MAX_NORM, SCALE = 0.02, 0.7, 1024.0

Batch = tuple[torch.Tensor, torch.Tensor]
Seen = list[tuple[float, float]]  # of each step: this rank's loss, and the scale behind it


def stock(model: nn.Module, batches: Iterable[Batch]) -> Seen:
    """Torch's DistributedDataParallel, scaler and clipping, as over any backend."""
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    seen = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(ddp(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        seen.append((loss.item(), scaler.get_scale()))
    return seen


def clipped(model: nn.Module, batches: Iterable[Batch]) -> Seen:
    """Gradients that are clipped as the backward pass ends: the wrapper is given the scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    ddp = fastcomm.nn.parallel.DistributedDataParallel(model, max_norm=MAX_NORM, grad_scaler=scaler)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=LR)
    seen = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(ddp(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((loss.item(), scaler.get_scale()))
    return seen


def sharded(model: nn.Module, batches: Iterable[Batch]) -> Seen:
    """Gradients that are reduced, unscaled and clipped in the optimizer's step."""
    optimizer = fastcomm.optim.ShardedOptimizer(
        model.parameters(), torch.optim.AdamW, lr=LR, max_norm=MAX_NORM
    )
    scaler = fastcomm.amp.GradScaler("cpu", init_scale=SCALE)  # torch's would be refused
    seen = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((loss.item(), scaler.get_scale()))
    return seen


def build() -> nn.Module:
    """Return a small model, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))


def batches(rank: int, steps: int) -> Iterator[Batch]:
    """Yield a rank's batches."""
    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        x = torch.randn(32, 16, generator=generator)
        yield x, x.sum(1, keepdim=True) / 4


def main() -> None:
    """Train in each way that the command line names."""
    dist.init_process_group("fastcomm")
    rank = dist.get_rank()
    for way in sys.argv[1:]:
        train = {"stock": stock, "clipped": clipped, "sharded": sharded}[way]
        seen = train(build(), batches(rank, 60))
        losses = f"loss {seen[0][0]:.4f}, then {seen[-1][0]:.4f}"
        print(f"rank {rank}, {way}: {losses}; scale {seen[-1][1]:g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Small models under stock DistributedDataParallel, with all its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


class Dense(nn.Module):
    """Large enough for more than one bucket, and for more than one block of a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 10)
        )
        self.unused = nn.Linear(10, 10)
        self.use_all = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return self.unused(y) if self.use_all else y


class Convolution(nn.Module):
    """With batch normalisation, whose buffers travel in every forward."""

    statistics = True  # each rank's own after the last step

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
        )
        self.layers(torch.zeros(2, 1, 4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.view(-1, 1, 4, 8))


class Complex(nn.Module):
    """Complex parameters of both widths among real ones, and a complex buffer."""

    statistics = True

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 40)
        self.turn = nn.Parameter(0.1 * torch.randn(40, 30, dtype=torch.complex64))
        self.shift = nn.Parameter(torch.randn(30, dtype=torch.complex64))
        self.factor = nn.Parameter(torch.tensor(1 + 1j))
        self.wide = nn.Parameter(torch.randn(30, dtype=torch.complex128))
        self.last = nn.Linear(30, 10)
        self.unused = nn.Linear(10, 10, dtype=torch.complex64)
        self.use_all = True
        self.register_buffer("mean", torch.randn(30, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x).to(torch.complex64) @ self.turn + self.shift + self.mean
        self.mean.mul_(0.9).add_(z.detach().mean(0), alpha=0.1)
        y = self.last((z * self.factor * self.wide).abs().float())
        return self.unused(y.to(torch.complex64)).abs() if self.use_all else y


def _fp16(ddp: DistributedDataParallel) -> None:
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)


def _then(ddp: DistributedDataParallel) -> None:
    def hook(size, bucket):  # type: ignore[no-untyped-def]  # torch would refuse annotations that are strings
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0].div_(size))

    ddp.register_comm_hook(dist.get_world_size(), hook)


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    options: Mapping[str, Any] = field(default_factory=dict)
    model: Callable[[], nn.Module] = Dense
    dtype: torch.dtype = torch.float32
    hook: Callable[[DistributedDataParallel], None] | None = None
    leave_one_out: bool = False  # a layer gets no gradient in some steps, on some ranks
    accumulate: bool = False  # no_sync in every other step
    uneven: bool = False  # ranks with different numbers of steps, under join()
    own_group: bool = False  # a process group of its own


VARIANTS: dict[str, Variant] = {
    "default": Variant(),
    "many buckets": Variant({"bucket_cap_mb": 0.05}),
    "find_unused_parameters": Variant({"find_unused_parameters": True}, leave_one_out=True),
    "static_graph": Variant({"static_graph": True}),
    "gradient_as_bucket_view": Variant({"gradient_as_bucket_view": True}),
    "no_sync": Variant(accumulate=True),
    "batch norm": Variant(model=Convolution),
    "complex": Variant(model=Complex),
    "complex, many buckets": Variant(
        {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}, Complex
    ),
    "complex, find_unused_parameters": Variant(
        {"find_unused_parameters": True, "bucket_cap_mb": 0.01}, Complex, leave_one_out=True
    ),
    "complex, static_graph": Variant({"static_graph": True}, Complex),
    "complex, no_sync": Variant(model=Complex, accumulate=True),
    "complex, fp16 hook": Variant(model=Complex, hook=_fp16),
    "complex, hook with then": Variant(model=Complex, hook=_then),
    "complex, join": Variant(model=Complex, uneven=True),
    "bfloat16": Variant(dtype=torch.bfloat16),
    "fp16 hook": Variant(hook=_fp16),
    "hook with then": Variant(hook=_then),
    "join": Variant(uneven=True),
    "own group": Variant(own_group=True),
}


def train(variant: Variant, rank: int) -> tuple[list[float], list[torch.Tensor]]:
    """Train over the default group; return the losses and the final parameters and buffers."""
    torch.manual_seed(7 + 1000 * rank)  # broadcast by DDP: rank 0's values count
    model = variant.model()
    if variant.dtype != torch.float32:
        model.to(variant.dtype)
    group = dist.new_group() if variant.own_group else None
    ddp = DistributedDataParallel(model, process_group=group, **variant.options)
    if variant.hook is not None:
        variant.hook(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    losses = []
    with ddp.join() if variant.uneven else nullcontext():
        for step in range(STEPS + (rank if variant.uneven else 0)):
            if variant.leave_one_out:
                model.use_all = (step + rank) % 2 == 0
            x = torch.randn(8, 32, generator=data).to(variant.dtype)
            target = torch.randint(10, (8,), generator=data)
            quiet = variant.accumulate and step % 2 == 0
            with ddp.no_sync() if quiet else nullcontext():
                loss = nn.functional.cross_entropy(ddp(x).float(), target)
                loss.backward()
            losses.append(loss.item())
            if not quiet:
                optimizer.step()
                optimizer.zero_grad()
    return losses, [value.detach().clone() for value in model.state_dict().values()]

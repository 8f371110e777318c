"""Rules for tracing and differentiating ``torch.ops.fastcomm.*`` of csrc/ops/library.cpp.

``broadcast_coalesced(tensors, devices)`` returns copies of all tensors for each device in turn;
``reduce_add_coalesced(tensors, sources, destination)`` takes ``sources`` lists of equal length, one
after the other, and returns the list of their sums. Each operator computes the other's gradients. A
device is given by its index, -1 for the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastcomm import _native
from fastcomm._devices import streams as _streams
from fastcomm._devices.slots import served

_native.load()

Tensors = Sequence[torch.Tensor]
OPERATORS = torch.ops.fastcomm
SERVED = served()


def _device(index: int) -> torch.device:
    return torch.device("cpu") if index == -1 else torch.device(SERVED, index)


@torch.library.register_fake("fastcomm::broadcast_coalesced")
def _fake_broadcast(tensors: Tensors, devices: Sequence[int]) -> list[torch.Tensor]:
    return [torch.empty_like(t, device=_device(i)) for i in devices for t in tensors]


@torch.library.register_fake("fastcomm::reduce_add_coalesced")
def _fake_reduce(tensors: Tensors, sources: int, destination: int) -> list[torch.Tensor]:
    first = tensors[: len(tensors) // sources]
    return [torch.empty_like(tensor, device=_device(destination)) for tensor in first]


def _remember_broadcast(ctx: Any, inputs: tuple[Tensors, Sequence[int]], output: Any) -> None:
    tensors, devices = inputs
    ctx.count, ctx.copies = len(tensors), len(devices)
    ctx.source = tensors[0].get_device() if tensors else -1
    ctx.like = [(t.shape, t.dtype, t.is_floating_point() or t.is_complex()) for t in tensors]


def _derive_broadcast(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[Any, None]:
    wanted = [i for i, (_, _, differentiable) in enumerate(ctx.like) if differentiable]
    lists = [
        [_or_zeros(grads[copy * ctx.count + i], ctx.like[i], ctx.source) for i in wanted]
        for copy in range(ctx.copies)
    ]
    result: list[torch.Tensor | None] = [None] * ctx.count
    if wanted and lists:
        flat = [grad for each in lists for grad in each]
        eager = all(type(grad) is torch.Tensor for grad in flat)  # tracing uses subclasses
        forked = _streams.fork(grad.device for grad in flat) if eager else []
        sums = OPERATORS.reduce_add_coalesced(flat, ctx.copies, ctx.source)
        _streams.join(forked)
        for i, total in zip(wanted, sums, strict=True):
            result[i] = total
    return result, None


def _or_zeros(grad: torch.Tensor | None, like: Any, index: int) -> torch.Tensor:
    if grad is not None:
        return grad
    shape, dtype, _ = like
    return torch.zeros(shape, dtype=dtype, device=_device(index))


def _remember_reduce(ctx: Any, inputs: tuple[Tensors, int, int], output: Any) -> None:
    tensors, ctx.sources, _ = inputs
    count = len(tensors) // ctx.sources
    ctx.devices = [
        tensors[source * count].get_device() if count else -1 for source in range(ctx.sources)
    ]
    ctx.like = [(t.shape, t.dtype, t.is_floating_point() or t.is_complex()) for t in tensors]


def _derive_reduce(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[Any, None, None]:
    # Each term has the gradient of the sum, which is copied only to other devices.
    count = len(ctx.like) // ctx.sources
    result: list[torch.Tensor | None] = []
    for source, index in enumerate(ctx.devices):
        for i, grad in enumerate(grads):
            differentiable = ctx.like[source * count + i][2]
            kept = grad if differentiable else None
            result.append(None if kept is None else kept.to(_device(index)))
    return result, None, None


torch.library.register_autograd(
    "fastcomm::broadcast_coalesced", _derive_broadcast, setup_context=_remember_broadcast
)
torch.library.register_autograd(
    "fastcomm::reduce_add_coalesced", _derive_reduce, setup_context=_remember_reduce
)

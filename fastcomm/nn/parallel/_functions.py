"""The primitives of `fastcomm.comm` as autograd functions, as in ``torch.nn.parallel._functions``.

Each one's derivative is another of them, so it can be taken twice. Devices may be CPU slots.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from fastcomm import comm
from fastcomm._devices import streams as _streams
from fastcomm._devices.slots import CPU, Device, served, slot, slots

__all__ = ["Broadcast", "Gather", "ReduceAddCoalesced", "Scatter"]

_Tensors = tuple[torch.Tensor, ...]


class Broadcast(Function):
    """``Broadcast.apply(devices, *tensors)``: all tensors for the first device, then the next one.

    The tensors are on ``devices[0]``, whose results share their memory. Outputs of inputs that need
    no gradient need none. The derivative is `ReduceAddCoalesced`.
    """

    @staticmethod
    def forward(ctx: Any, devices: Sequence[Device], *inputs: torch.Tensor) -> _Tensors:
        targets = slots(devices)
        if not inputs:
            return ()
        lists = [as_before(values, inputs) for values in comm.broadcast_coalesced(inputs, targets)]
        return handed_out(ctx, ctx.needs_input_grad[1:], targets, lists)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, *summed_back(ctx, ctx.needs_input_grad[1:], grads))


def handed_out(
    ctx: Any,
    needed: Sequence[bool],
    targets: Sequence[torch.device],
    lists: Sequence[Sequence[torch.Tensor]],
) -> _Tensors:
    """Return a broadcast's results as a function does, and keep what `summed_back` needs.

    Results of inputs that need no gradient need none. Gradients that nobody computed are not filled
    in for all inputs.
    """
    inputs = lists[0]
    ctx.like = [(value.shape, value.dtype) for value in inputs]
    ctx.targets = list(targets)
    ctx.source = inputs[0].device
    ctx.set_materialize_grads(False)
    fixed = [i for i in range(len(inputs)) if not needed[i]]
    ctx.mark_non_differentiable(*(values[i] for i in fixed for values in lists))
    return tuple(value for values in lists for value in values)


def summed_back(
    ctx: Any, needed: Sequence[bool], grads: Sequence[torch.Tensor | None], zeros: bool = True
) -> list[torch.Tensor | None]:
    """Return the sums of the gradients of a broadcast's results, for the inputs that need one.

    With ``zeros`` an input gets zeros, as in torch, if no gradient of its results was computed;
    else it gets none.
    """
    count = len(ctx.like)
    places = [
        i
        for i in range(count)
        if needed[i] and (zeros or any(grad is not None for grad in grads[i::count]))
    ]
    result: list[torch.Tensor | None] = [None] * count
    if not places:
        return result
    flat = []
    forked = _streams.fork([ctx.source, *ctx.targets])
    for k, target in enumerate(ctx.targets):
        for i in places:
            grad = grads[k * count + i]
            shape, dtype = ctx.like[i]
            flat.append(torch.zeros(shape, dtype=dtype, device=target) if grad is None else grad)
    sums = ReduceAddCoalesced.apply(ctx.source, len(places), *flat)
    _streams.join(forked)
    for i, total in zip(places, sums, strict=True):
        result[i] = total
    return result


class ReduceAddCoalesced(Function):
    """``ReduceAddCoalesced.apply(destination, count, *tensors)``: lists of ``count``, summed.

    The derivative is `Broadcast`.
    """

    @staticmethod
    def forward(ctx: Any, destination: Device, count: int, *inputs: torch.Tensor) -> _Tensors:
        if count == 0:
            return ()
        lists = [inputs[i : i + count] for i in range(0, len(inputs), count)]
        ctx.sources = [values[0].device for values in lists]
        reals = [
            [torch.view_as_real(v.resolve_conj()) if v.is_complex() else v for v in values]
            for values in lists
        ]
        return tuple(as_before(comm.reduce_add_coalesced(reals, destination), lists[0]))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        # A broadcast begins where the gradients are, which may be a later list's device.
        begins = grads[0].device
        extra = 0 if ctx.sources[0] == begins else 1
        devices = [begins] * extra + ctx.sources
        forked = _streams.fork([begins, *ctx.sources])
        copies = Broadcast.apply(devices, *grads)
        _streams.join(forked)
        return (None, None, *copies[extra * len(grads) :])


class Scatter(Function):
    """``Scatter.apply(devices, chunk_sizes, dim, tensor)``: a chunk for each device, or fewer.

    From the CPU to devices it copies on its own streams, and the current ones wait. The derivative
    is `Gather`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        devices: Sequence[Device],
        chunk_sizes: Sequence[int] | None,
        dim: int,
        tensor: torch.Tensor,
    ) -> _Tensors:
        targets = slots(devices)
        ctx.dim, ctx.source = dim, tensor.device
        kind = served() if tensor.device == CPU and any(t != CPU for t in targets) else None
        streams = [_copy_stream(t) if t.type == kind else None for t in targets]
        chunks = comm.scatter(tensor, targets, chunk_sizes, dim, streams)
        # A device that was listed before gets memory of its own, as other devices do: else what one
        # replica does to its input in place would spoil what another has saved of it.
        chunks = tuple(
            chunk.clone()
            if chunk.device == tensor.device and chunk.device in targets[:i]
            else chunk
            for i, chunk in enumerate(chunks)
        )
        for chunk, stream in zip(chunks, streams, strict=False):
            _streams.receive(stream, chunk)
        return tuple(torch.view_as_complex(c) if tensor.is_complex() else c for c in chunks)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        forked = _streams.fork([ctx.source, *(grad.device for grad in grads)])
        _streams.use(grads)
        joined = Gather.apply(ctx.source, ctx.dim, *grads)
        _streams.join(forked)
        return None, None, None, joined


class Gather(Function):
    """``Gather.apply(destination, dim, *tensors)``: one tensor, joined along ``dim``.

    Scalars become a vector, and a warning says so, as in torch: `DataParallel` joins them
    without one. The derivative is `Scatter`.
    """

    @staticmethod
    def forward(ctx: Any, destination: Device, dim: int, *inputs: torch.Tensor) -> torch.Tensor:
        target = slot(destination)
        ctx.dim = dim
        ctx.sources = [value.device for value in inputs]
        ctx.scalars = dim == 0 and all(value.dim() == 0 for value in inputs)
        if ctx.scalars:
            inputs = tuple(value.view(1) for value in inputs)
            warnings.warn(
                "Was asked to gather along dimension 0, but all input tensors were scalars; "
                "will instead unsqueeze and return a vector.",
                stacklevel=2,
            )
        ctx.sizes = [value.size(dim) for value in inputs]
        joined = comm.gather(inputs, dim, target)
        return torch.view_as_complex(joined) if inputs and inputs[0].is_complex() else joined

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        forked = _streams.fork([grad.device, *ctx.sources])
        chunks = Scatter.apply(ctx.sources, ctx.sizes, ctx.dim, grad)
        _streams.join(forked)
        return (None, None, *(chunk[0] if ctx.scalars else chunk for chunk in chunks))


def as_before(values: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Make complex again what `fastcomm.comm` took as its real view."""
    return [
        torch.view_as_complex(value) if model.is_complex() and not value.is_complex() else value
        for value, model in zip(values, like, strict=True)
    ]


_copy_streams: dict[torch.device, torch.Stream] = {}


def _copy_stream(device: torch.device) -> torch.Stream:
    """Return the stream on which copies from the CPU to a device run."""
    if device not in _copy_streams:
        _copy_streams[device] = torch.Stream(device)
    return _copy_streams[device]

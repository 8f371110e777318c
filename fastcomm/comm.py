"""The primitives of ``torch.cuda.comm`` for the devices of one process, CPU slots included.

Signatures, results and errors are torch's. Besides CUDA devices a device may be ``"cpu"``: a list
such as ``["cpu", "cpu"]`` means two replicas in the CPU's memory. A sum is computed in the order of
a fixed tree over the inputs ((0, 1), (2, 3), ..., then pairs of pairs), fp16, bf16 and fp32 in an
fp32 accumulator with one rounding at the end, so it has the same bits in every run.

Lists of CPU tensors are copied or summed in one pass over the memory by all intra-op threads of
torch, without a flat buffer in between. The results of a call lie in one block of memory, which is
given back when the last of them is gone, and kept for later calls: see `empty_cache`.

All functions are thread-safe. On CUDA devices they order themselves after the current streams, as
torch's do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.parallel import comm as _torch_comm

from fastcomm import _native
from fastcomm._devices import lists as _lists
from fastcomm._devices import streams as _streams
from fastcomm._devices.slots import CPU, Device, index_of, slot, slots
from fastcomm._gradients.fused import fused_reduce_add_coalesced

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "empty_cache",
    "fused_reduce_add_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]

UNINITIALIZED = (
    "Modules with uninitialized parameters can't be used with `DataParallel`. "
    "Run a dummy forward pass to correctly initialize the modules"
)

# torch's functions as they were at import: `fastcomm.use` puts ours in their place.
_stock: dict[str, Callable[..., Any]] = {
    name: getattr(_torch_comm, name) for name in __all__ if hasattr(_torch_comm, name)
}


def broadcast(
    tensor: torch.Tensor,
    devices: Iterable[Device] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> Sequence[torch.Tensor]:
    """Copy a tensor to several devices.

    Args:
        tensor: on any device; a complex one is taken as its real view, and stays real, except
            for what in ``out`` is complex.
        devices: where to. On the tensor's own device the result is the tensor itself.
        out: instead of ``devices``, tensors of the same shape to copy to.

    Returns:
        A tensor for each device; or ``out``.

    Raises:
        RuntimeError: both or neither of ``devices`` and ``out``; a shape in ``out`` that differs.
    """
    real = _as_real(tensor)
    if (devices is None) == (out is None):
        raise RuntimeError(
            "Exactly one of 'devices' and 'out' must be specified, "
            f"but got devices={devices} and out={out}"
        )
    if devices is not None:
        return tuple(_copy_to(real, target) for target in slots(devices))
    assert out is not None
    values = [tensor if target.is_complex() else real for target in out]
    for i, (target, value) in enumerate(zip(out, values, strict=True)):
        if target.shape != value.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(value.shape)}, but output tensor at index {i} has shape "
                f"{list(target.shape)}"
            )
    for target, value in zip(out, values, strict=True):
        _copy_into(target, value)
    return tuple(out)


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Iterable[Device], buffer_size: int = 10485760
) -> Sequence[Sequence[torch.Tensor]]:
    """Copy a list of tensors to several devices.

    Args:
        tensors: all on ``devices[0]``, of any shapes and dtypes, sparse ones too. Complex ones are
            taken as their real views.
        devices: where to; the first holds the tensors.
        buffer_size: bytes to coalesce on the way to a CUDA device. Between CPU slots nothing is
            coalesced.

    Returns:
        A list for each device. The first holds the tensors themselves. Tensors of the other lists
        are new, each with its own version counter, and not seen by autograd (see
        `fastcomm.nn.parallel._functions.Broadcast`), with the strides of ``torch.empty_like``.

    Raises:
        RuntimeError: no device; a tensor on another device than the first.
    """
    targets = slots(devices)
    if not targets:
        raise RuntimeError("Expected at least one device to broadcast to")
    if targets[0] == CPU and not torch.compiler.is_compiling():  # most are plain: ask nothing
        made = _lists.copies(list(tensors), targets)
        if made is not None:
            return [list(tensors), *made]
    values = [_as_real(tensor) for tensor in tensors]
    for value in values:
        if value.device != targets[0]:
            raise RuntimeError(f"All tensors must be on devices[0]: {index_of(targets[0])}")
    made = _lists.copies(values, targets)
    if made is None and all(target.type == "cuda" for target in targets):
        copied: Sequence[Sequence[torch.Tensor]] = _stock["broadcast_coalesced"](
            values, [index_of(target) for target in targets], buffer_size
        )
        return copied
    if made is None:
        made = [_lists.mixed_copies(values, target) for target in targets[1:]]
    return [values, *made]


def reduce_add(inputs: Sequence[torch.Tensor], destination: Device | None = None) -> torch.Tensor:
    """Sum tensors of several devices.

    Args:
        inputs: of one shape, dtype and layout.
        destination: the device of the result, on which one of the inputs must be. Default: the CPU
            if all inputs are there, else the current accelerator.

    Returns:
        A new tensor; the input itself if it is the only one. Differentiable.

    Raises:
        ValueError: shapes that differ.
        RuntimeError: no input is on ``destination``.
    """
    if destination is None and all(value.device == CPU for value in inputs):
        destination = CPU
    target = slot(destination)
    _check_place(inputs, target)
    if len(inputs) == 1:
        return inputs[0]
    derived = torch.is_grad_enabled() and any(value.requires_grad for value in inputs)
    if derived or any(value.layout != torch.strided for value in inputs):
        return _lists.tree_sum(list(inputs), target)
    return _lists.sums([[value] for value in inputs], target)[0]


def reduce_add_coalesced(
    inputs: Iterable[Sequence[torch.Tensor]],
    destination: Device | None = None,
    buffer_size: int = 10485760,
) -> tuple[torch.Tensor, ...]:
    """Sum lists of tensors of several devices, place by place.

    Args:
        inputs: a list for each device, all of the same length. Tensors at one place have one shape
            and dtype; where all of them are sparse so is the sum, else they are made dense.
        destination: the device of the result; default as in `reduce_add`.
        buffer_size: accepted for torch's sake; nothing is coalesced.

    Returns:
        New tensors, each with its own version counter, not seen by autograd.

    Raises:
        ValueError: lists of different lengths, or shapes that differ.
        RuntimeError: no list is on ``destination``.
    """
    lists = [list(values) for values in inputs]
    if not lists:
        return ()
    if not torch.compiler.is_compiling() and (destination is None or slot(destination) == CPU):
        totals = _native.load().sum_lists(lists, -1)  # None unless all of them are on the CPU
        if totals is not None:
            return tuple(totals)
    if destination is None and all(value.device == CPU for values in lists for value in values):
        destination = CPU
    target = slot(destination)
    for values in lists:
        if len(values) != len(lists[0]):
            raise ValueError(f"reduce_add: lists of {len(lists[0])} and of {len(values)} tensors")
    result: list[torch.Tensor | None] = []
    dense: list[tuple[torch.Tensor, ...]] = []
    for place in zip(*lists, strict=True):
        _check_place(place, target)
        if all(value.is_sparse for value in place):
            _streams.use(place)
            result.append(_lists.tree_sum([value.detach() for value in place], target))
        else:
            result.append(None)
            dense.append(tuple(v.to_dense() if v.is_sparse else v for v in place))
    sums = iter(_lists.sums([list(column) for column in zip(*dense, strict=True)], target))
    return tuple(next(sums) if total is None else total for total in result)


def _check_place(place: Sequence[torch.Tensor], target: torch.device) -> None:
    for i, value in enumerate(place):
        if value.shape != place[0].shape:
            got = "x".join(str(extent) for extent in value.shape)
            expected = "x".join(str(extent) for extent in place[0].shape)
            raise ValueError(f"input {i} has invalid size: got {got}, but expected {expected}")
    if all(value.device != target for value in place):
        raise RuntimeError(
            "reduce_add expects destination to be on the same GPU with one of the tensors"
        )


def scatter(
    tensor: torch.Tensor,
    devices: Iterable[Device] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Cut a tensor along one dimension, and send each chunk to a device.

    Args:
        tensor: on any device; a complex one is taken as its real view, unless all of ``out`` are
            complex. One without dimensions cannot be cut.
        devices: where to. A chunk that is already there is a view.
        chunk_sizes: how much of ``dim`` each device gets; equal chunks by default, of which there
            may be fewer than devices.
        dim: the dimension.
        streams: for each chunk the stream to copy on, or None.
        out: instead of ``devices``, tensors to copy to, which determine the sizes.

    Returns:
        The chunks; or ``out``.

    Raises:
        RuntimeError: no device; sizes that do not fit; ``out`` together with what it replaces.
        IndexError: no such dimension.
    """
    given, tensor = tensor, _as_real(tensor)
    if given.is_complex():  # the pairs of its real view are no dimension of it
        dim = _wrapped(dim, given)
    if given.dim() == 0 or (out and all(target.is_complex() for target in out)):
        tensor = given
    if out is not None:
        return _scatter_out(tensor, devices, chunk_sizes, dim, out)
    targets = slots(devices or ())
    if not targets:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is None:
        chunks = tensor.chunk(len(targets), dim)
    else:
        if len(chunk_sizes) != len(targets):
            raise RuntimeError(
                "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
                f"{len(targets)} and len(chunk_sizes) = {len(chunk_sizes)}"
            )
        chunks = tensor.split_with_sizes(list(chunk_sizes), dim)
    if not any(streams or ()):
        arrived = _between_devices(chunks, targets)
        if arrived is not None:
            return arrived
    return tuple(
        _send(chunk, target, i, streams)
        for i, (chunk, target) in enumerate(zip(chunks, targets, strict=False))
    )


def _between_devices(
    chunks: Sequence[torch.Tensor], targets: Sequence[torch.device]
) -> tuple[torch.Tensor, ...] | None:
    """Return the chunks on their devices; None where the host, autograd or tracing is involved."""
    if torch.compiler.is_compiling() or CPU in (chunks[0].device, *targets):
        return None
    if torch.is_grad_enabled() and chunks[0].requires_grad:
        return None
    arrived = tuple(
        chunk if chunk.device == target else torch.empty_like(chunk, device=target)
        for chunk, target in zip(chunks, targets, strict=False)
    )
    away = [(a, b) for a, b in zip(arrived, chunks, strict=True) if a is not b]
    _copy_all([a for a, _ in away], [b for _, b in away])
    return arrived


def _send(
    chunk: torch.Tensor,
    target: torch.device,
    i: int,
    streams: Sequence[torch.Stream | None] | None,
) -> torch.Tensor:
    if chunk.device == target:
        return chunk
    stream = streams[i] if streams is not None and i < len(streams) else None
    if stream is None or target == CPU:
        return chunk.to(target, non_blocking=target != CPU)
    if stream.device_index != target.index:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {i} "
            f"(was {stream.device_index}) to match the device supplied at that index "
            f"(expected {target.index})"
        )
    with stream:
        return chunk.to(target, non_blocking=True)


def _scatter_out(
    tensor: torch.Tensor,
    devices: Iterable[Device] | None,
    chunk_sizes: Sequence[int] | None,
    dim: int,
    out: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    for name, value in (("devices", devices), ("chunk_sizes", chunk_sizes)):
        if value is not None:
            raise RuntimeError(
                f"'{name}' must not be specified when 'out' is specified, but got {name}={value}"
            )
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = _wrapped(dim, tensor)
    sizes = []
    for i, target in enumerate(out):
        expected = list(tensor.shape)
        if target.dim() == tensor.dim():
            expected[dim] = target.size(dim)
        if list(target.shape) != expected:
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect shape: {list(target.shape)}. Expected "
                f"same shape except for scatter dim {dim} as the source tensor: "
                f"{list(tensor.shape)}"
            )
        sizes.append(target.size(dim))
    if sum(sizes) != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {tensor.size(dim)}, but got total size "
            f"{sum(sizes)}"
        )
    _copy_all(list(out), list(tensor.split_with_sizes(sizes, dim)))
    return tuple(out)


def gather(
    tensors: Iterable[torch.Tensor],
    dim: int = 0,
    destination: Device | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Join tensors of several devices along one dimension.

    Args:
        tensors: of one shape but for ``dim``, and at least one dimension; complex ones are taken
            as their real views, unless ``out`` is complex.
        dim: the dimension.
        destination: the device of the result. Default: the current accelerator, or the CPU where
            there is none.
        out: instead, a tensor to copy to.

    Returns:
        A new tensor, channels_last if all inputs are; or ``out``.

    Raises:
        RuntimeError: no tensor; shapes that do not fit; ``out`` together with ``destination``.
        IndexError: no such dimension.
    """
    given = list(tensors)
    values = [_as_real(tensor) for tensor in given]
    if out is not None and destination is not None:
        raise RuntimeError(
            "'destination' must not be specified when 'out' is specified, "
            f"but got destination={destination}"
        )
    if out is None and destination == -1:
        warnings.warn(
            "Using -1 to represent CPU tensor is deprecated. Please use a "
            'device object or string instead, e.g., "cpu".',
            FutureWarning,
            stacklevel=2,
        )
    if not values:
        raise RuntimeError("Expected at least one tensor to gather from")
    dim = _wrapped(dim, given[0])  # of its real view the last one holds the pairs
    if given[0].dim() == 0 or (out is not None and out.is_complex()):
        values = given
    expected = list(values[0].shape)
    for i, value in enumerate(values):
        if value.dim() != len(expected):
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {i} has {value.dim()} dimensions, (expected {len(expected)})"
            )
        expected[dim] = value.size(dim)
        if list(value.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape: got {list(value.shape)}, "
                f"but expected {expected}"
            )
    expected[dim] = sum(value.size(dim) for value in values)
    if out is None:
        target = slot(destination)
        derived = torch.is_grad_enabled() and any(value.requires_grad for value in values)
        here = all(value.device == target for value in values)
        if derived or here or len({value.dtype for value in values}) > 1:
            return torch.cat([v.to(target, non_blocking=target != CPU) for v in values], dim)
        last = all(_is_channels_last(value) for value in values)
        out = torch.empty(  # each arrives where it belongs
            expected,
            dtype=values[0].dtype,
            device=target,
            memory_format=torch.channels_last if last else torch.contiguous_format,
        )
    elif list(out.shape) != expected:
        raise RuntimeError(
            f"Expected output tensor to have shape {expected}, but got {list(out.shape)}"
        )
    parts = out.split_with_sizes([value.size(dim) for value in values], dim)
    _copy_all(list(parts), values)
    return out


def empty_cache() -> None:
    """Free the CPU memory that is kept for later results of this module.

    At most as much is kept as was recently in use at one time.
    """
    _native.load().empty_cache()


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise RuntimeError(UNINITIALIZED)
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _wrapped(dim: int, tensor: torch.Tensor) -> int:
    rank: int = max(tensor.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], "
            f"but got {dim})"
        )
    return dim % rank


def _copy_all(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy each value to its target: by one kernel a device where that can be, else by torch."""
    if not _lists.send(values, targets):
        for target, value in zip(targets, values, strict=True):
            _copy_into(target, value)


def _copy_into(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy; a copy to the host is complete on return, since nothing would tell of its end later."""
    target.copy_(value, non_blocking=target.device != CPU)


def _copy_to(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """Return a differentiable copy, or the tensor itself if it is there."""
    return tensor if tensor.device == target else tensor.to(target, non_blocking=target != CPU)

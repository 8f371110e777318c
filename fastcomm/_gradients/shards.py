"""Lists of tensors of which every rank owns a part: gradients reduced to it, parameters gathered.

A tensor is divided by offsets: rank r owns the elements from ``offsets[r]`` to ``offsets[r + 1]``,
counted as they lie in memory. An empty list of offsets means that every rank wants the whole
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from fastcomm._distributed import backend as _backend
from fastcomm._gradients.fused import FusedResult, reduce_list

__all__ = ["fused_reduce_scatter_", "gather_shards_", "row_offsets"]


def row_offsets(tensor: torch.Tensor, size: int) -> list[int]:
    """Cut a tensor along its first dimension, as ``torch.chunk`` and DTensor's ``Shard(0)`` do.

    Args:
        tensor: dense, its first dimension the outermost in memory: contiguous or channels_last.
        size: the number of ranks.

    Returns:
        The ``size + 1`` offsets, in elements; the last ranks may own nothing. Empty for a tensor
        without dimensions.

    Raises:
        ValueError: another layout, or complex numbers.
    """
    if tensor.dim() == 0:
        return []
    if tensor.is_complex():
        raise ValueError("a complex tensor cannot be divided by rows: its parts are pairs of reals")
    rows = tensor.size(0)
    row = tensor.numel() // rows if rows else 0
    if tensor.numel() and not (
        (rows == 1 or tensor.stride(0) == row) and tensor[:1].numel() == _extent(tensor[:1])
    ):
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} with strides {list(tensor.stride())} cannot "
            "be divided by rows: its rows do not lie one after the other. Make it contiguous"
        )
    each = -(-rows // size)
    return [min(rank * each, rows) * row for rank in range(size + 1)]


def fused_reduce_scatter_(
    grads: Sequence[torch.Tensor],
    offsets: Sequence[Sequence[int]],
    group: dist.ProcessGroup | None = None,
    *,
    average: bool = True,
    scale: float = 1.0,
    comm_dtype: torch.dtype | None = None,
    norm_type: float | None = 2.0,
    async_op: bool = False,
    timeout: timedelta | None = None,
) -> FusedResult:
    """Reduce gradients as `fused_all_reduce_` does, each rank its own part.

    Args:
        grads: dense tensors without gaps, where `fused_all_reduce_` takes them; reduced in place.
            Afterwards a rank has the elements that it owns; the others are unspecified.
        offsets: one list for each tensor, equal on all ranks; see `row_offsets`.
        group, average, scale, comm_dtype, norm_type, async_op, timeout: as for `fused_all_reduce_`.

    Returns:
        The `FusedResult` of the whole gradients, on every rank: the bits of `fused_all_reduce_`.

    Raises:
        As `fused_all_reduce_`. ValueError: offsets that do not go from 0 to the number of elements.
    """
    _check_offsets(grads, offsets, dist.get_world_size(group))
    options = (average, scale, comm_dtype, norm_type)
    return reduce_list(
        list(grads), group, options, offsets=offsets, async_op=async_op, timeout=timeout
    )


def gather_shards_(
    tensors: Sequence[torch.Tensor],
    offsets: Sequence[Sequence[int]],
    group: dist.ProcessGroup | None = None,
    *,
    timeout: timedelta | None = None,
) -> None:
    """Give every rank the parts that the others own, in place.

    Args:
        tensors: dense floating-point tensors without gaps, on the CPU or on the group's devices.
        offsets: as above; tensors without offsets are left alone.
        group: any process group. Where it has no native path every rank broadcasts its parts.
        timeout: instead of the group's; native groups only.

    Raises:
        ValueError: a tensor or offsets that do not fit.
        CollectiveMismatchError: the lists of the ranks differ. Nothing has been written.
        FastcommError: as for any collective. Parts of other ranks may have arrived, or not.

    On devices no call waits for what it has enqueued. The last two errors are raised by the group's
    next call; parts of other ranks are NaN then.
    """
    _check_offsets(tensors, offsets, dist.get_world_size(group))
    backend = _backend.backend_of(group)
    gathered = None
    if backend is not None:
        seconds = None if timeout is None else timeout.total_seconds()
        gathered = backend.gather_shards(list(tensors), offsets, seconds, False)
    if gathered is None:
        for owner in range(dist.get_world_size(group)):
            _broadcast_parts(tensors, offsets, group, owner)
    elif gathered[0] is not None:
        gathered[0].wait()  # it has failed, which this raises; or several hosts are at it


def _check_offsets(
    tensors: Sequence[torch.Tensor], offsets: Sequence[Sequence[int]], size: int
) -> None:
    if len(offsets) != len(tensors):
        raise ValueError(f"{len(offsets)} lists of offsets for {len(tensors)} tensors")
    for i, (tensor, own) in enumerate(zip(tensors, offsets, strict=True)):
        if own:
            _check_layout(i, tensor)
        ends = (0, tensor.numel())
        if own and ((own[0], own[-1]) != ends or len(own) != size + 1 or sorted(own) != list(own)):
            raise ValueError(
                f"the offsets of tensor {i} are {list(own)}: for {size} ranks they are {size + 1} "
                f"numbers from 0 to its {tensor.numel()} elements, in order"
            )


def _check_layout(i: int, tensor: torch.Tensor) -> None:
    if tensor.is_complex():
        raise ValueError(f"tensor {i} is complex, and has offsets: give torch.view_as_real() of it")
    if tensor.numel() and _extent(tensor) != tensor.numel():
        raise ValueError(
            f"tensor {i} has gaps, so that its offsets say nothing: make it contiguous"
        )


def _broadcast_parts(
    tensors: Sequence[torch.Tensor],
    offsets: Sequence[Sequence[int]],
    group: dist.ProcessGroup | None,
    owner: int,
) -> None:
    with torch.no_grad():
        for tensor, own in zip(tensors, offsets, strict=True):
            if own and own[owner] < own[owner + 1]:
                flat = tensor.as_strided((tensor.numel(),), (1,))
                dist.broadcast(flat[own[owner] : own[owner + 1]], group=group, group_src=owner)


def _extent(tensor: torch.Tensor) -> int:
    """Return the number of elements from the first to the last in memory."""
    extent = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        extent += (size - 1) * stride
    return extent

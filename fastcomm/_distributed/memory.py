"""Memory that every rank of a process group on this host can reach."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _native
from fastcomm._distributed import backend as _backend

logger = logging.getLogger("fastcomm")


def empty(
    *size: int | Sequence[int],
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return a new tensor in memory that other ranks reach too, like ``torch.empty``.

    On the CPU, which is the default, it is shared memory of all process groups of this host; on a
    device, memory that the devices of one group's ranks have mapped.

    **CPU.** An ``all_reduce`` larger than the one-shot limit works on such memory in place, without
    staging, where the tensor of every rank lies there. Any rank may use any other memory instead:
    results have the same bits. The buckets of ``DistributedDataParallel`` are allocated there
    automatically.

    The memory counts against ``FASTCOMM_SEGMENT_MB``, takes whole pages of 4 KiB, and costs a
    system call and page faults when it is new: allocate once, use often. A child of ``fork()`` sees
    what its parent writes there, and the other way round. A tensor that is resized beyond its
    memory moves to ordinary memory. After an operation on it has raised an error, peers may write
    to it until they have destroyed their process group too.

    **Devices**, of ranks that reach each other's memory. Sums and moves of ``group`` larger than
    the one-shot limit read and write such tensors where they lie, if they begin at a multiple of 16
    bytes; any rank may use any other tensor instead. Call it on all ranks at about the same time,
    after the group's first collective on such tensors: where the group has no room left, the ranks
    wait for each other, at most 5 seconds, and for the work given to their devices, and make some.
    Such memory stays with the group (``FASTCOMM_POOL_MB`` limits it). The tensor belongs to the
    current stream, as others do. After use on another one call ``record_stream``: where the next
    tensor is made in that memory, its own stream first waits for the other's work up to the time
    when this one was freed. What autograd and futures record by themselves, torch keeps from this
    memory: there let its own stream wait. The tensor may outlive its group.

    Args:
        size: the shape, as integers or as one sequence of them.
        out: a tensor made by `empty`, to be reused: it gets the shape, within its memory, and is
            returned. ``dtype`` and ``device``, if given, must be its own.
        dtype: element type; torch's default type if None.
        device: where; the CPU if None.
        requires_grad: as in ``torch.empty``.
        group: for a tensor on a device: the ranks that reach it; the default group if None.

    Returns:
        A contiguous tensor of undefined content, in ordinary memory where this process can have no
        other; the logger ``fastcomm`` warns once and says why.

    Raises:
        FastcommError: the segment or the machine has no memory left; the group has failed.
        ValueError: a negative size; an ``out`` that is not such a tensor, or too small.
    """
    first = size[0] if len(size) == 1 else None
    shape: list[Any] = list(first if isinstance(first, Sequence) else size)
    kind = torch.get_default_dtype() if dtype is None else dtype
    if any(extent < 0 for extent in shape):
        raise ValueError(f"a tensor has no negative size: {shape}")
    if out is not None:
        return _again(out, shape, dtype, device).requires_grad_(requires_grad)
    where = torch.device("cpu" if device is None else device)
    if where.type != "cpu":
        found, reason = _on_device(shape, kind, where, group)
        if found is None:
            if reason:
                _warn_once(reason)
            found = torch.empty(shape, dtype=kind, device=where)
        return found.requires_grad_(requires_grad)
    if reason := _native.load().why_no_shared_memory():
        _warn_once(reason)
        return torch.empty(shape, dtype=kind, requires_grad=requires_grad)
    tensor: torch.Tensor = _native.load().shared_empty(shape, kind)
    return tensor.requires_grad_(requires_grad)


def is_shared(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor lies wholly in memory such as `empty` makes, on the CPU or a device."""
    shared: bool = _native.load().is_shared(tensor)
    return shared


def _again(
    out: torch.Tensor,
    shape: list[int],
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> torch.Tensor:
    where = out.device if device is None else torch.device(device)
    if where.index is None and where.type == out.device.type:
        where = out.device
    if (out.dtype if dtype is None else dtype, where) != (out.dtype, out.device):
        raise ValueError(f"out is of {out.dtype} on {out.device}, not of {dtype} on {device}")
    # Where this process can have no such memory, `empty` has returned ordinary memory.
    if out.is_cpu and not is_shared(out) and not _native.load().why_no_shared_memory():
        raise ValueError("out does not lie in memory of fastcomm.empty")
    bytes_there = out.untyped_storage().nbytes() - out.storage_offset() * out.itemsize
    if math.prod(shape) * out.itemsize > bytes_there:
        raise ValueError(f"out has {bytes_there} bytes: too few for {shape} of {out.dtype}")
    return out.resize_(shape)


def _on_device(
    shape: list[int], dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor | None, str]:
    """Return the tensor, or None and why there is none."""
    if not dist.is_initialized():
        return None, "there is no process group"
    backend = _backend.backend_of(group, behind_checks=True)
    if backend is None:
        return None, "the process group is not fastcomm's"
    found: tuple[torch.Tensor | None, str] = backend.shared_empty_on(shape, dtype, device)
    return found


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("fastcomm.empty returns ordinary memory: %s", reason)

"""Memory that every rank of a process group on this host can reach."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch

from fastcomm import backend as _backend

logger = logging.getLogger("fastcomm")


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, requires_grad: bool = False
) -> torch.Tensor:
    """Return a new CPU tensor in shared memory, like ``torch.empty``.

    An ``all_reduce`` larger than the one-shot limit works on such memory in place, without staging,
    where the tensor of every rank lies there. Any rank may use any other memory instead: results
    have the same bits. The buckets of ``DistributedDataParallel`` are allocated so by themselves.

    The memory counts against ``FASTCOMM_SEGMENT_MB``, takes whole pages of 4 KiB, and costs a
    system call and page faults when it is new: allocate once, use often. A child of ``fork()`` sees
    what its parent writes there, and the other way round. A tensor that is resized beyond its
    memory moves to ordinary memory. After an operation on it has raised an error, peers may write
    to it until they have destroyed their process group too.

    Args:
        size: the shape, as integers or as one sequence of them.
        dtype: element type; torch's default type if None.
        requires_grad: as in ``torch.empty``.

    Returns:
        A contiguous tensor of undefined content. Ordinary memory where this process can have no
        shared memory; the logger ``fastcomm`` warns once and says why.

    Raises:
        FastcommError: the segment or the machine has no memory left.
        ValueError: a negative size.
    """
    first = size[0] if len(size) == 1 else None
    shape: list[Any] = list(first if isinstance(first, Sequence) else size)
    kind = torch.get_default_dtype() if dtype is None else dtype
    if any(extent < 0 for extent in shape):
        raise ValueError(f"a tensor has no negative size: {shape}")
    if reason := _backend.load().why_no_shared_memory():
        _warn_once(reason)
        return torch.empty(shape, dtype=kind, requires_grad=requires_grad)
    tensor: torch.Tensor = _backend.load().shared_empty(shape, kind)
    return tensor.requires_grad_(requires_grad)


def is_shared(tensor: torch.Tensor) -> bool:
    """Tell whether the memory of a tensor is shared memory of fastcomm (see `empty`)."""
    shared: bool = _backend.load().is_shared(tensor)
    return shared


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("fastcomm.empty returns ordinary memory: %s", reason)

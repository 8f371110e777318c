"""Collectives without torch's own layers, for short messages: operators with types, and `prepare`.

The operators are ``torch.ops.fastcomm.all_reduce_`` and its kin (csrc/c10d/edge/library.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from fastcomm import _native

if TYPE_CHECKING:
    from fastcomm._C import PreparedCall

_NATIVE = _native.load()
_OPERATORS = torch.ops.fastcomm
_NO_GROUP = "there is no process group: call init_process_group first"


def _group_name(group: dist.ProcessGroup | None) -> str:
    found = dist.group.WORLD if group is None else group
    if found is None:
        raise ValueError(_NO_GROUP)
    name: str = found.group_name
    return name


def all_reduce_(
    tensor: torch.Tensor, op: str = "sum", group: dist.ProcessGroup | None = None
) -> None:
    """Reduce a tensor over the ranks of a group, in place on all of them.

    The same call as ``dist.all_reduce(tensor)``, and of the same place in the group's order, in
    less time: it is the operator ``torch.ops.fastcomm.all_reduce_(tensor, group.group_name, op)``,
    which ``torch.compile`` traces without a graph break. Calls of both kinds may be mixed, on one
    rank and between ranks. It returns when the result is there; on a device, when the current
    stream waits for it. Any thread may call it.

    Args:
        tensor: of any shape, the same number of elements and dtype on every rank.
        op: 'sum', 'avg', 'max', 'min', 'product', 'band', 'bor' or 'bxor'.
        group: the default group if None; of any backend, but only fastcomm's gains by it.

    Raises:
        FastcommError: as ``dist.all_reduce``.
        ValueError: there is no group, or no such ``op``.
    """
    _OPERATORS.all_reduce_.default(tensor, _group_name(group), op)


def all_gather_into(
    output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup | None = None
) -> None:
    """Gather the tensors of all ranks into one, as ``dist.all_gather_into_tensor``.

    Else as `all_reduce_`.

    Args:
        output: as many elements as all ranks' tensors together, in the order of ranks.
        tensor: this rank's, with as many elements as every other's.
        group: the default group if None; of any backend, but only fastcomm's gains by it.
    """
    _OPERATORS.all_gather_into.default(output, tensor, _group_name(group))


def reduce_scatter_into(
    output: torch.Tensor,
    tensor: torch.Tensor,
    op: str = "sum",
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reduce a tensor over ranks and leave each its part, as ``dist.reduce_scatter_tensor``.

    Else as `all_reduce_`.

    Args:
        output: this rank's part of the result.
        tensor: the parts of all ranks, in the order of ranks.
        op: as in `all_reduce_`.
        group: the default group if None; of any backend, but only fastcomm's gains by it.
    """
    _OPERATORS.reduce_scatter_into.default(output, tensor, _group_name(group), op)


def broadcast_(
    tensor: torch.Tensor, group_src: int, group: dist.ProcessGroup | None = None
) -> None:
    """Give every rank the tensor of one, in place, as ``dist.broadcast``.

    Else as `all_reduce_`.

    Args:
        tensor: of any shape, the same number of elements and dtype on every rank.
        group_src: the rank in the group that gives it.
        group: the default group if None; of any backend, but only fastcomm's gains by it.
    """
    _OPERATORS.broadcast_.default(tensor, group_src, _group_name(group))


def all_to_all_into(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Exchange parts of tensors between all ranks, as ``dist.all_to_all_single``.

    Else as `all_reduce_`.

    Args:
        output: what the ranks send to this one, in the order of ranks.
        tensor: what this rank sends to each, in the order of ranks.
        output_splits: rows of each part of ``output``; equal parts if None.
        input_splits: rows of each part of ``tensor``; equal parts if None.
        group: the default group if None; of any backend, but only fastcomm's gains by it.
    """
    _OPERATORS.all_to_all_into.default(
        output, tensor, output_splits, input_splits, _group_name(group)
    )


def barrier(group: dist.ProcessGroup | None = None) -> None:
    """Wait until every rank of a group has come, as ``dist.barrier``. Else as `all_reduce_`.

    Equal ones of a compiled graph that is differentiated may become one.
    """
    _OPERATORS.barrier.default(_group_name(group))


# Of an operation: its tensors, in torch's words.
_TENSORS = {
    "all_reduce": ("tensor",),
    "broadcast": ("tensor",),
    "all_gather_into_tensor": ("output", "input"),
    "reduce_scatter_tensor": ("output", "input"),
    "all_to_all_single": ("output", "input"),
    "barrier": (),
}
_NO_ROOT = -1


def prepare(
    operation: str,
    *tensors: torch.Tensor,
    op: str = "sum",
    group_src: int | None = None,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float | timedelta | None = None,
) -> PreparedCall:
    """Give the arguments of a collective once, and call it again and again.

        call = fastcomm.prepare("all_reduce", tensor)
        call()                       # as dist.all_reduce(tensor)
        call.start(); call.wait()    # as its asynchronous form

    Each call has its place in the group's order like one of ``torch.distributed``, with the same
    errors and the same bits, and ranks may mix both kinds. It saves what torch spends on a call.

    Tensors are held, and looked at anew by each call: their elements, their shapes and the place of
    their memory may change between two calls, but not between ``start()`` and the end of
    ``wait()``. Call it from one thread at a time.

    Args:
        operation: 'all_reduce', 'broadcast', 'all_gather_into_tensor', 'reduce_scatter_tensor',
            'all_to_all_single' or 'barrier', as in ``torch.distributed``.
        tensors: its tensors, in the order of that function: one, or output and input, or none.
        op: of a reduction: 'sum', 'avg', 'max', 'min', 'product', 'band', 'bor' or 'bxor'.
        group_src: of a broadcast: the rank in the group that gives the tensor.
        output_splits: of an all_to_all_single, as in ``torch.distributed``.
        input_splits: likewise.
        group: the default group if None. It may be destroyed while the call is held.
        timeout: of each call, in seconds or as a timedelta; the group's if None.

    Returns:
        What is called. ``start()`` raises ValueError if it was started before and not waited for.

    Raises:
        ValueError: there is no such operation or ``op``, no group, or another number of tensors.
    """
    if operation not in _TENSORS:
        raise ValueError(f"prepare: operation is one of {', '.join(_TENSORS)}, not {operation!r}")
    names = _TENSORS[operation]
    if len(tensors) != len(names):
        wanted = f"tensors ({', '.join(names)})" if names else "tensors"
        raise ValueError(f"prepare: {operation} takes {len(names)} {wanted}, not {len(tensors)}")
    if (operation == "broadcast") != (group_src is not None):
        raise ValueError("prepare: group_src is for a broadcast, which needs it")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    found = dist.group.WORLD if group is None else group
    if found is None:
        raise ValueError(_NO_GROUP)
    call: PreparedCall = _NATIVE.PreparedCall(
        found._get_backend(tensors[0].device if tensors else torch.device("cpu")),
        operation,
        list(tensors[1:]),
        list(tensors[:1]),
        op,
        _NO_ROOT if group_src is None else group_src,
        list(input_splits or ()),
        list(output_splits or ()),
        seconds,
    )
    return call

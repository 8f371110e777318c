"""The operations of a schedule on one rank: their data, their calls, and the right results.

Inputs cancel and depend on operation, rank and position, so that a block that is lost, stale or
added in the wrong order shows in the bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from faults.schedule import DTYPES, LARGEST, Op
from support.reductions import reduced
from support.tree import same_bits, tree_sum
from support.values import cancelling

import fastcomm

_SHIFTS = 4096
Tensors = list[torch.Tensor]

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
    "bor": dist.ReduceOp.BOR,
}


@functools.cache
def _pattern(dtype: str) -> torch.Tensor:
    return cancelling(getattr(torch, dtype), LARGEST // DTYPES[dtype] + 20000 + _SHIFTS, 0)


def warm() -> None:
    """Make what all runs share; called in the fork server, so that its children have it."""
    for dtype in DTYPES:
        _pattern(dtype)


def drawn(dtype: str, count: int, shift: int) -> torch.Tensor:
    """Return values that cancel, different for each shift. A view: copy it."""
    first = shift % _SHIFTS
    return _pattern(dtype)[first : first + count]


def given(op: Op, number: int, rank: int) -> torch.Tensor:
    """Return what a rank (of the world) puts into an operation. A view: copy it."""
    return drawn(op.dtype, op.count, number * 389 + rank * 97 + 13)


def combined(terms: Tensors, reduction: str) -> torch.Tensor:
    """Return what a reduction makes of one tensor per rank."""
    if reduction in ("sum", "avg"):
        return tree_sum(terms, reduction == "avg")
    return reduced(terms, reduction)


def memory(values: torch.Tensor, shared: bool) -> torch.Tensor:
    """Return a copy, in memory of fastcomm.empty or in ordinary memory."""
    tensor = (fastcomm.empty if shared else torch.empty)(values.numel(), dtype=values.dtype)
    return tensor.copy_(values)


@dataclass
class Bound:
    """An operation with this rank's tensors: ``launch(asynchronous)`` issues it."""

    launch: Callable[[bool], Any]
    written: Tensors
    before: Tensors  # what `written` holds at first
    right: Callable[[], Tensors]  # what it must hold in the end, followed by what is `found`
    found: Tensors = field(default_factory=list)  # what the call itself gives

    def is_right(self) -> bool:
        return _same([*self.written, *self.found], self.right())

    def is_untouched(self) -> bool:
        return _same(self.written, self.before)


def _same(given: Tensors, wanted: Tensors) -> bool:
    dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in given]
    return len(dense) == len(wanted) and all(map(same_bits, dense, wanted))


def bind(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Prepare an operation; ``number`` is its place in the schedule."""
    from faults import (
        fused_operations,
        list_operations,
        messages,
        part_operations,
        routed_operations,
    )

    for module in (fused_operations, part_operations, routed_operations, list_operations, messages):
        if op.kind in module.KINDS:
            return module.bind(op, number, rank, members, group, shared)
    own = given(op, number, rank)

    def inputs() -> Tensors:
        return [given(op, number, member) for member in members]

    if op.kind == "barrier":
        return Bound(lambda a: dist.barrier(group=group, async_op=a), [], [], list)
    if op.kind == "all_reduce":
        tensor = memory(own, shared)
        name = "avg" if op.average else op.reduction
        return Bound(
            lambda a: dist.all_reduce(tensor, REDUCTIONS[name], group=group, async_op=a),
            [tensor],
            [own],
            lambda: [combined(inputs(), name)],
        )
    if op.kind == "broadcast":
        tensor = memory(own, shared)
        return Bound(
            lambda a: dist.broadcast(tensor, src=op.root, group=group, async_op=a),
            [tensor],
            [own],
            lambda: [given(op, number, op.root)],
        )
    assert op.kind == "all_gather", op
    tensor = memory(own, shared)
    others = [memory(own, shared) for _ in members]
    return Bound(
        lambda a: dist.all_gather(others, tensor, group=group, async_op=a),
        [tensor, *others],
        [own] * (1 + len(members)),
        lambda: [own, *inputs()],
    )

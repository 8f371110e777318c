"""The operations of a schedule on one rank: their data, their calls, and the right results.

Inputs cancel and depend on operation, rank and position, so that a block that is lost, stale or
added in another order shows in the bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from faults.schedule import DTYPES, LARGEST, Op
from support.tree import same_bits, tree_sum
from support.values import cancelling

import fastcomm

_SHIFTS = 4096
Tensors = list[torch.Tensor]


@functools.cache
def _pattern(dtype: str) -> torch.Tensor:
    return cancelling(getattr(torch, dtype), LARGEST // DTYPES[dtype] + 20000 + _SHIFTS, 0)


def warm() -> None:
    """Make what all runs share; in the fork server, so that its children have it."""
    for dtype in DTYPES:
        _pattern(dtype)


def drawn(dtype: str, count: int, shift: int) -> torch.Tensor:
    """Return values that cancel, others for each shift. A view: copy it."""
    first = shift % _SHIFTS
    return _pattern(dtype)[first : first + count]


def given(op: Op, number: int, rank: int) -> torch.Tensor:
    """What a rank (of the world) puts into an operation. A view: copy it."""
    return drawn(op.dtype, op.count, number * 389 + rank * 97 + 13)


@dataclass
class Bound:
    """An operation with this rank's tensors: ``launch(asynchronous)`` issues it."""

    launch: Callable[[bool], Any]
    written: Tensors
    before: Tensors  # what `written` holds at first
    right: Callable[[], Tensors]  # what it must hold in the end, and then what is `found`
    found: Tensors = field(default_factory=list)  # what the call itself gives

    def is_right(self) -> bool:
        return _same([*self.written, *self.found], self.right())

    def is_untouched(self) -> bool:
        return _same(self.written, self.before)


def _same(given: Tensors, wanted: Tensors) -> bool:
    return len(given) == len(wanted) and all(map(same_bits, given, wanted))


def bind(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Prepare an operation; ``number`` is its place in the schedule."""
    if op.kind in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        from faults import part_operations

        return part_operations.bind(op, number, rank, members, group, shared)
    if op.kind == "fused_all_reduce":
        from faults import fused_operations

        return fused_operations.bind(op, number, rank, members, group, shared)
    dtype = getattr(torch, op.dtype)
    own = given(op, number, rank)

    def fresh(values: torch.Tensor) -> torch.Tensor:
        tensor = (fastcomm.empty if shared else torch.empty)(values.numel(), dtype=dtype)
        return tensor.copy_(values)

    def inputs() -> Tensors:
        return [given(op, number, member) for member in members]

    if op.kind == "barrier":
        return Bound(lambda a: dist.barrier(group=group, async_op=a), [], [], list)
    if op.kind == "all_reduce":
        tensor = fresh(own)
        kind = dist.ReduceOp.AVG if op.average else dist.ReduceOp.SUM
        return Bound(
            lambda a: dist.all_reduce(tensor, kind, group=group, async_op=a),
            [tensor],
            [own],
            lambda: [tree_sum(inputs(), op.average)],
        )
    if op.kind == "broadcast":
        tensor = fresh(own)
        return Bound(
            lambda a: dist.broadcast(tensor, src=op.root, group=group, async_op=a),
            [tensor],
            [own],
            lambda: [given(op, number, op.root)],
        )
    if op.kind == "all_gather":
        tensor = fresh(own)
        others = [fresh(own) for _ in members]
        return Bound(
            lambda a: dist.all_gather(others, tensor, group=group, async_op=a),
            [tensor, *others],
            [own] * (1 + len(members)),
            lambda: [own, *inputs()],
        )
    from faults import stock_operations

    return stock_operations.bind(op, number, rank, members, group)

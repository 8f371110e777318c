"""Operations whose message has a part for each rank, as `operations.bind` makes them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from faults.operations import REDUCTIONS, Bound, Tensors, combined, drawn, given
from faults.schedule import Op

import fastcomm

KINDS = ("all_gather_into_tensor", "reduce_scatter_tensor")


def parts_of(op: Op, number: int, rank: int, size: int) -> Tensors:
    """Return what a rank (of the world) gives to each rank of a group."""
    first = number * 389 + rank * 97 + 13
    return [drawn(op.dtype, op.count, first + place * 1009) for place in range(size)]


def bind(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Prepare an operation, as `operations.bind` does."""
    size, place, dtype = len(members), members.index(rank), getattr(torch, op.dtype)
    empty = fastcomm.empty if shared else torch.empty
    part, whole = empty(op.count, dtype=dtype), empty(size * op.count, dtype=dtype)
    if op.kind == "all_gather_into_tensor":
        part.copy_(given(op, number, rank))
        whole.fill_(99)
        return Bound(
            lambda a: dist.all_gather_into_tensor(whole, part, group=group, async_op=a),
            [part, whole],
            [part.clone(), whole.clone()],
            lambda: [given(op, number, rank), torch.cat([given(op, number, m) for m in members])],
        )
    whole.copy_(torch.cat(parts_of(op, number, rank, size)))
    part.fill_(99)
    name = "avg" if op.average else op.reduction
    return Bound(
        lambda a: dist.reduce_scatter_tensor(
            part, whole, REDUCTIONS[name], group=group, async_op=a
        ),
        [part, whole],
        [part.clone(), whole.clone()],
        lambda: [
            combined([parts_of(op, number, m, size)[place] for m in members], name),
            torch.cat(parts_of(op, number, rank, size)),
        ],
    )

"""Operations with a root, of parts, and with another reduction, as `operations.bind` makes them.

What is summed are small integers, exact in every type and in every order.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from faults.operations import Bound, given
from faults.schedule import Op


def small(op: Op, number: int, rank: int, parts: int = 1) -> torch.Tensor:
    """What a rank (of the world) puts into an operation whose message has so many parts."""
    count = parts * op.count
    values = (torch.arange(17) * (rank + 3) + number) % 17 - 8  # again and again
    return values.to(getattr(torch, op.dtype)).repeat(count // 17 + 1)[:count]


def bind(op: Op, number: int, rank: int, members: tuple[int, ...], group: Any) -> Bound:
    """As `operations.bind`, always in ordinary memory."""
    size, place, is_root = len(members), members.index(rank), rank == op.root
    tensor = small(op, number, rank)
    before = tensor.clone()
    output = torch.full((op.count,), 99).to(tensor.dtype)
    start = output.clone()

    def inputs(parts: int = 1) -> list[torch.Tensor]:
        return [small(op, number, member, parts) for member in members]

    if op.kind == "all_reduce_max":
        wide = given(op, number, rank).clone()
        return Bound(
            lambda a: dist.all_reduce(wide, dist.ReduceOp.MAX, group=group, async_op=a),
            [wide],
            [given(op, number, rank)],
            lambda: [functools.reduce(torch.maximum, [given(op, number, m) for m in members])],
        )
    if op.kind == "reduce":
        return Bound(
            lambda a: dist.reduce(tensor, dst=op.root, group=group, async_op=a),
            [tensor],
            [before],
            lambda: [torch.stack(inputs()).sum(0).to(tensor.dtype) if is_root else tensor],
        )
    if op.kind == "all_to_all_single":
        parts, whole = small(op, number, rank, size), start.repeat(size)
        return Bound(
            lambda a: dist.all_to_all_single(whole, parts, group=group, async_op=a),
            [whole],
            [start.repeat(size)],
            lambda: [torch.cat([part.view(size, -1)[place] for part in inputs(size)])],
        )
    if op.kind == "scatter":
        pieces = list(small(op, number, op.root, size).view(size, -1)) if is_root else None
        return Bound(
            lambda a: dist.scatter(output, pieces, src=op.root, group=group, async_op=a),
            [output],
            [start],
            lambda: [small(op, number, op.root, size).view(size, -1)[place]],
        )
    assert op.kind == "gather", op
    outputs = [start.clone() for _ in members] if is_root else None
    return Bound(
        lambda a: dist.gather(tensor, outputs, dst=op.root, group=group, async_op=a),
        [tensor, *(outputs or [])],
        [before] + [start] * len(outputs or []),
        lambda: [before, *(inputs() if is_root else [])],
    )

"""Fused reductions of lists of gradients, as `operations.bind` makes them.

Every rank has None entries and gradients with gaps where it likes: peers do not see them. In some
operations numbers are infinite or NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from faults.operations import Bound, Tensors, drawn
from faults.schedule import Gradients, Op
from support import fused

import fastcomm

KINDS = ("fused_all_reduce",)


def given(one: Gradients, number: int, rank: int) -> Tensors:
    """Return what a rank (of the world) puts into an operation."""
    values = []
    for place, (dtype, shape) in enumerate(one.tensors):
        shift = number * 389 + rank * 97 + place * 1009 + 13
        value = drawn(dtype, math.prod(shape), shift).clone()
        if number % 4 == 3 and place == 0 and len(value):
            special = (math.inf, -math.inf, math.nan)[(number + rank) % 3]
            value[rank * 5 % len(value)] = special
        values.append(value.view(shape))
    return values


def right(one: Gradients, number: int, members: tuple[int, ...], average: bool) -> Tensors:
    """Return the resulting gradients, and what is found out about them."""
    terms = zip(*(given(one, number, member) for member in members), strict=True)
    wire = getattr(torch, one.wire)
    sums = [fused.reduced(list(each), average, one.scale, wire) for each in terms]
    finite = all(bool(total.isfinite().all()) for total in sums)
    found = [torch.tensor(0.0 if finite else 1.0)]
    if one.norm is not None:
        parts = [fused.part(total, one.norm) for total in sums]
        wide = any(total.dtype == torch.float64 for total in sums)
        norm = fused.norm(parts, one.norm)
        found.append(torch.tensor(norm, dtype=torch.float64 if wide else torch.float32))
        found.append(torch.tensor(parts, dtype=torch.float64))
    return [*sums, *found]


def bind(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Prepare an operation, as `operations.bind` does."""
    one = op.gradients
    assert one is not None
    own = given(one, number, rank)
    tensors = [_placed(value, shared, (number + rank + i) % 5 == 0) for i, value in enumerate(own)]
    found: Tensors = []
    listed: list[torch.Tensor | None] = list(tensors)
    for place in range((number + rank) % 3):
        listed.insert((rank + 2 * place) % (len(listed) + 1), None)

    def launch(asynchronous: bool) -> Any:
        result = fastcomm.fused_all_reduce_(
            listed,
            group,
            average=op.average,
            scale=one.scale,
            comm_dtype=getattr(torch, one.wire),
            norm_type=one.norm,
            async_op=asynchronous,
        )
        # A list that is gathered is over by now; schedules have no such list.
        assert (result.work is not None) == asynchronous
        found.append(result.found_inf)
        if one.norm is not None:
            assert result.total_norm is not None
            found.extend([result.total_norm, result.partial_norms])
        return result.work

    return Bound(launch, tensors, own, lambda: right(one, number, members, op.average), found)


def _placed(value: torch.Tensor, shared: bool, gaps: bool) -> torch.Tensor:
    """Put values into new memory, some of them with every other element left out."""
    stride = 2 if gaps and value.dim() == 1 else 1
    memory = (fastcomm.empty if shared else torch.empty)(value.numel() * stride, dtype=value.dtype)
    return memory[::stride].view(value.shape).copy_(value)

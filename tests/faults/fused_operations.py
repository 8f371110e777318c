"""Fused reductions of lists of gradients, as `operations.bind` makes them.

Every rank has None entries and gradients with gaps where it likes: peers do not see them. In some
operations numbers are infinite or NaN.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from faults.operations import Planned, drawn
from faults.schedule import Gradients
from support import fused
from support.tree import same_bits
from trials.layouts import Laid, Layout

import fastcomm

Tensors = list[torch.Tensor]


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


def right(
    one: Gradients, number: int, members: tuple[int, ...], average: bool
) -> tuple[Tensors, Tensors]:
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
    return sums, found


def trouble(found: Tensors, wanted: Tensors) -> str:
    """Say what is wrong with what a call finds out, if anything."""
    fine = len(found) == len(wanted) and all(map(same_bits, found, wanted))
    return "" if fine else f"found out {found}, wanted {wanted}"


def fused_all_reduce(make: Planned) -> None:
    op, number, members = make.planned, make.number, make.spec.members
    one, rank = op.gradients, members[make.rank]
    assert one is not None

    @functools.cache
    def wanted() -> tuple[Tensors, Tensors]:
        return right(one, number, members, op.average)

    def gradient(i: int) -> torch.Tensor:
        return wanted()[0][i]

    listed: list[torch.Tensor | None] = []
    for i, value in enumerate(given(one, number, rank)):
        form = "strided" if (number + rank + i) % 5 == 0 and value.dim() == 1 else "plain"
        laid = Laid(value, Layout(form, make.memory))
        make.case.wanted.append((f"gradient {i}", laid, functools.partial(gradient, i)))
        listed.append(laid.given)
    for place in range((number + rank) % 3):
        listed.insert((rank + 2 * place) % (len(listed) + 1), None)
    found: Tensors = []

    def call() -> Any:
        result = fastcomm.fused_all_reduce_(
            listed,
            make.group,
            average=op.average,
            scale=one.scale,
            comm_dtype=getattr(torch, one.wire),
            norm_type=one.norm,
            async_op=make.spec.asynchronous,
        )
        # A list that is gathered is over by now; schedules have no such list.
        assert (result.work is not None) == make.spec.asynchronous
        found.append(result.found_inf)
        if one.norm is not None:
            assert result.total_norm is not None
            found.extend([result.total_norm, result.partial_norms])
        return result.work

    make.case.call, make.case.objects = call, lambda: trouble(found, wanted()[1])

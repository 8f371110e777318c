"""The operations of a schedule on one rank: calls of `trials`, with inputs of their own.

Inputs cancel and depend on operation, rank and position, so that a block that is lost, stale or
added in the wrong order shows in the bits.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from faults.schedule import DTYPES, LARGEST, Op, Step
from support.values import cancelling
from trials import collective_calls, other_calls, values
from trials.case import Case, Maker, Spec, pair
from trials.layouts import Layout, Shape

import fastcomm.distributed as fd

_SHIFTS = 4096
_UNEVEN = 1 << 16  # elements, at most, by which a rank's part is longer than LARGEST
_MOST_RANKS = 6  # of the largest group
_UNEVEN_KINDS = ("all_to_all", "all_to_all_single", "all_gather_uneven", "reduce_scatter_uneven")


@functools.cache
def _pattern(dtype: str) -> torch.Tensor:
    return cancelling(getattr(torch, dtype), LARGEST // DTYPES[dtype] + _UNEVEN + _SHIFTS, 0)


def warm() -> None:
    """Make what all runs share; called in the fork server, so that its children have it."""
    for dtype in DTYPES:
        _pattern(dtype)


def drawn(dtype: str, count: int, shift: int) -> torch.Tensor:
    """Return values that cancel, different for each shift. Maybe a view: copy it."""
    most = LARGEST // DTYPES[dtype] + _UNEVEN
    if count > most:
        return torch.cat([drawn(dtype, most, shift), drawn(dtype, count - most, shift + 1009)])
    first = shift % _SHIFTS
    return _pattern(dtype)[first : first + count]


class Planned(Maker):
    """Makes the case of one rank for an operation of a schedule."""

    def __init__(self, op: Op, step: Step, rank: int, members: tuple[int, ...], group: Any) -> None:
        spec = Spec(
            name=op.kind,
            seed=step.op,
            members=members,
            dtype=getattr(torch, op.dtype),
            kind=values.WHOLE,
            op="avg" if op.average else op.reduction,
            shapes=_shapes(op),
            root=members.index(op.root) if op.root in members else 0,
            asynchronous=step.asynchronous,
            plain=1.0,
            alike=True,
            option=2,  # no place is used twice, and parts are not stacked
        )
        super().__init__(spec, members.index(rank), group)
        self.planned, self.number = op, step.op
        self.memory = "fastcomm.empty" if step.shared else "own"

    def _layout(self, rank: int, name: str, shape: Shape, written: bool) -> Layout:
        return Layout(memory=self.memory)

    def term(self, rank: int, name: str, shape: Shape, written: bool = False) -> torch.Tensor:
        shift = self.number * 389 + self.spec.members[rank] * 97 + zlib.crc32(name.encode())
        return drawn(self.planned.dtype, shape[0], shift)

    def rows(self, most: int) -> list[list[int]]:
        ranks = range(self.size)
        return [[pair(self, source, target)[0] for target in ranks] for source in ranks]


def _shapes(op: Op) -> list[Shape]:
    """Return those of its tensors; of uneven parts one for each rank, and one rank has nothing."""
    if op.kind not in _UNEVEN_KINDS:
        return [(elements,) for elements in op.tensors]
    return [(op.count + place * 5 % 7 if place % 4 != 3 else 0,) for place in range(_MOST_RANKS)]


def _all_reduce(make: Maker) -> None:
    tensor = collective_calls.summed(make, "tensor", make.spec.shapes[0])
    if _by_operator(make):
        make.case.call = lambda: fd.all_reduce_(tensor, make.spec.op, make.group)
    else:
        make.case.call = lambda: dist.all_reduce(tensor, make.op(), **make.options)


def _barrier(make: Maker) -> None:
    if _by_operator(make):
        make.case.call = lambda: fd.barrier(make.group)
    else:
        other_calls.barrier(make)


def _by_operator(make: Maker) -> bool:
    """Tell whether this rank calls an operator, and not torch's function. Ranks need not agree."""
    return not make.spec.asynchronous and (make.spec.seed + make.rank) % 3 != 0


def _all_reduce_coalesced(make: Maker) -> None:
    collective_calls.all_reduce_coalesced(make)
    tensors = [laid.given for _, laid, _ in make.case.wanted]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = make.op()
    # torch's own function returns no work.
    _call(make, lambda: make.group.allreduce_coalesced(tensors, options))


def _all_gather_coalesced(make: Maker) -> None:
    names = [(f"input {i}", shape) for i, shape in enumerate(make.spec.shapes)]
    sources = [make.given(*each) for each in names]
    outputs = [make.output(f"output of {each}", torch.cat(make.terms(*each))) for each in names]
    _call(make, lambda: make.group.allgather_into_tensor_coalesced(outputs, sources))


def _call(make: Maker, begin: Callable[[], Any]) -> None:
    make.case.call = lambda: begin() if make.spec.asynchronous else begin().wait()


def bind(op: Op, step: Step, rank: int, members: tuple[int, ...], group: Any) -> Case:
    """Prepare an operation, with this rank's tensors, as the step says."""
    from faults import fused_operations, messages

    makers: dict[str, Callable[[Any], None]] = {
        **messages.MAKERS,
        "fused_all_reduce": fused_operations.fused_all_reduce,
        "all_gather_uneven": collective_calls.all_gather,
        "reduce_scatter_uneven": collective_calls.reduce_scatter,
        "all_reduce": _all_reduce,
        "all_reduce_coalesced": _all_reduce_coalesced,
        "all_gather_coalesced": _all_gather_coalesced,
        "all_reduce_sparse": other_calls.sparse,
        "barrier": _barrier,
    }
    make = Planned(op, step, rank, members, group)
    (makers.get(op.kind) or getattr(collective_calls, op.kind))(make)
    return make.made()

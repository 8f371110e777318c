"""Operations over lists of tensors, and over sparse ones, as `operations.bind` makes them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from faults.operations import REDUCTIONS, Bound, Tensors, combined, drawn, given, memory
from faults.schedule import Op

KINDS = ("all_reduce_coalesced", "all_gather_coalesced", "all_reduce_sparse")


def lengths(op: Op) -> tuple[int, ...]:
    """Return the elements of each tensor of a list."""
    return (op.count // 3, 0, op.count - op.count // 3, 7)


def listed(op: Op, number: int, rank: int) -> Tensors:
    """Return what a rank (of the world) puts into an operation. Views: copy them."""
    first = number * 389 + rank * 97
    return [drawn(op.dtype, n, first + i * 1009) for i, n in enumerate(lengths(op))]


def thinned(op: Op, number: int, rank: int) -> torch.Tensor:
    """Return a rank's sparse tensor as a dense one: a few, different elements; none on rank 3."""
    values = given(op, number, rank).clone()
    values[(torch.arange(op.count) * 7 + rank + number) % 13 > (0 if rank != 3 else -1)] = 0
    return values


def bind(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Prepare an operation, as `operations.bind` does."""
    own = group or dist.group.WORLD
    if op.kind == "all_reduce_sparse":
        tensor = thinned(op, number, rank).to_sparse()
        return Bound(
            lambda a: dist.all_reduce(tensor, group=group, async_op=a),
            [tensor],
            [thinned(op, number, rank)],
            lambda: [combined([thinned(op, number, member) for member in members], "sum")],
        )
    terms = {member: listed(op, number, member) for member in members}
    tensors = [memory(each, shared) for each in terms[rank]]
    if op.kind == "all_reduce_coalesced":
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = REDUCTIONS[op.reduction]

        def reduce(asynchronous: bool) -> Any:  # torch's own function returns no work
            work = own.allreduce_coalesced(tensors, options)
            return work if asynchronous else work.wait()

        return Bound(
            reduce,
            tensors,
            terms[rank],
            lambda: [
                combined(list(each), op.reduction) for each in zip(*terms.values(), strict=True)
            ],
        )
    assert op.kind == "all_gather_coalesced", op
    outputs = [memory(each.repeat(len(members)), shared).fill_(99) for each in tensors]

    def gather(asynchronous: bool) -> Any:
        work = own.allgather_into_tensor_coalesced(outputs, tensors)
        return work if asynchronous else work.wait()

    return Bound(
        gather,
        outputs,
        [each.clone() for each in outputs],
        lambda: [torch.cat(each) for each in zip(*terms.values(), strict=True)],
    )

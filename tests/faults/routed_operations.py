"""Operations whose ranks give different things to different ranks, for `operations.bind`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from faults.operations import REDUCTIONS, Bound, Tensors, combined, drawn, given, memory
from faults.schedule import Op

KINDS = (
    "reduce", "gather", "scatter", "all_to_all", "all_to_all_single",
    "all_gather_uneven", "reduce_scatter_uneven",
)  # fmt: skip


def part_count(op: Op, source: int, target: int) -> int:
    """Return the elements from one place of the group to another; some pairs have none."""
    return 0 if (source + target) % 5 == 3 else op.count + (source * 7 + target * 3) % 11


def part(op: Op, number: int, source: int, target: int) -> torch.Tensor:
    """Return what one place of the group gives to another. A view: copy it."""
    return drawn(
        op.dtype, part_count(op, source, target), number * 389 + source * 97 + target * 1009
    )


def uneven(op: Op, size: int) -> list[int]:
    """Return the elements of each place of the group, where they differ."""
    return [op.count + place * 5 % 7 if place % 4 != 3 else 0 for place in range(size)]


def bind(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Prepare an operation, as `operations.bind` does."""
    if op.kind in ("reduce", "gather", "scatter"):
        return _rooted(op, number, rank, members, group, shared)
    if op.kind in ("all_to_all", "all_to_all_single"):
        return _exchange(op, number, members.index(rank), len(members), group, shared)
    return _uneven(op, number, rank, members, group, shared)


def _blank(like: torch.Tensor, shared: bool) -> torch.Tensor:
    return memory(like, shared).fill_(99)


def _rooted(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    place, is_root, own = members.index(rank), rank == op.root, given(op, number, rank)
    tensor = memory(own, shared)

    def inputs() -> Tensors:
        return [given(op, number, member) for member in members]

    if op.kind == "reduce":
        kind = REDUCTIONS[op.reduction]
        return Bound(
            lambda a: dist.reduce(tensor, op.root, kind, group=group, async_op=a),
            [tensor],
            [own],
            lambda: [combined(inputs(), op.reduction) if is_root else own],
        )
    if op.kind == "gather":
        outputs = [_blank(own, shared) for _ in members] if is_root else None
        return Bound(
            lambda a: dist.gather(tensor, outputs, dst=op.root, group=group, async_op=a),
            [tensor, *(outputs or [])],
            [own, *(each.clone() for each in outputs or [])],
            lambda: [own, *(inputs() if is_root else [])],
        )
    tensor.fill_(99)
    pieces = [memory(piece, shared) for piece in inputs()] if is_root else None
    return Bound(
        lambda a: dist.scatter(tensor, pieces, src=op.root, group=group, async_op=a),
        [tensor],
        [tensor.clone()],
        lambda: [inputs()[place]],
    )


def _exchange(op: Op, number: int, place: int, size: int, group: Any, shared: bool) -> Bound:
    sent = [part(op, number, place, target) for target in range(size)]
    wanted = [part(op, number, source, place) for source in range(size)]
    if op.kind == "all_to_all":
        inputs = [memory(each, shared) for each in sent]
        outputs = [_blank(each, shared) for each in wanted]
        return Bound(
            lambda a: dist.all_to_all(outputs, inputs, group=group, async_op=a),
            outputs,
            [each.clone() for each in outputs],
            lambda: wanted,
        )
    whole, output = memory(torch.cat(sent), shared), _blank(torch.cat(wanted), shared)
    ins, outs = [len(each) for each in sent], [len(each) for each in wanted]
    return Bound(
        lambda a: dist.all_to_all_single(output, whole, outs, ins, group=group, async_op=a),
        [output],
        [output.clone()],
        lambda: [torch.cat(wanted)],
    )


def _uneven(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    size, place = len(members), members.index(rank)
    counts = uneven(op, size)
    if op.kind == "all_gather_uneven":
        pieces = [
            drawn(op.dtype, count, number * 389 + member * 97)
            for count, member in zip(counts, members, strict=True)
        ]
        own, outputs = memory(pieces[place], shared), [_blank(each, shared) for each in pieces]
        return Bound(
            lambda a: dist.all_gather(outputs, own, group=group, async_op=a),
            [own, *outputs],
            [pieces[place], *(each.clone() for each in outputs)],
            lambda: [pieces[place], *pieces],
        )
    assert op.kind == "reduce_scatter_uneven", op

    def terms(member: int) -> Tensors:
        first = number * 389 + member * 97
        return [drawn(op.dtype, count, first + 1009 * i) for i, count in enumerate(counts)]

    inputs = [memory(each, shared) for each in terms(rank)]
    output, kind = _blank(inputs[place], shared), REDUCTIONS[op.reduction]
    return Bound(
        lambda a: dist.reduce_scatter(output, inputs, kind, group=group, async_op=a),
        [output, *inputs],
        [output.clone(), *terms(rank)],
        lambda: [
            combined([terms(member)[place] for member in members], op.reduction),
            *terms(rank),
        ],
    )

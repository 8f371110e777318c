"""Sends and receives, as `operations.bind` makes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from faults.operations import Bound, Tensors, given, memory
from faults.schedule import MESSAGES, Op

KINDS = MESSAGES


@dataclass
class Works:
    """Several works as one."""

    works: list[Any]
    then: Callable[[], object] = lambda: None

    def wait(self, timeout: timedelta | None = None) -> None:
        for work in self.works:
            work.wait() if timeout is None else work.wait(timeout)
        self.then()


def bind(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Prepare an operation, as `operations.bind` does."""
    if op.kind == "batch":
        return _batch(op, number, rank, members, group, shared)
    if rank != op.root:
        return _send(op, number, rank, group, shared)
    if op.kind == "any_source":
        return _from_any(op, number, rank, members, group, shared)
    assert op.kind == "message", op
    tensor = _blank(op, number, shared)
    return Bound(
        lambda a: (
            dist.irecv(tensor, op.source, group, op.tag)
            if a
            else _nothing(dist.recv(tensor, op.source, group, op.tag))
        ),
        [tensor],
        [tensor.clone()],
        lambda: [given(op, number, op.source)],
    )


def _blank(op: Op, number: int, shared: bool) -> torch.Tensor:
    return memory(given(op, number, 0), shared).fill_(99)


def _nothing(_: object) -> None:
    """Take what is no work: the rank that sent it."""


def _send(op: Op, number: int, rank: int, group: Any, shared: bool) -> Bound:
    own = given(op, number, rank)
    tensor = memory(own, shared)
    return Bound(
        lambda a: (dist.isend if a else dist.send)(tensor, op.root, group, op.tag),
        [tensor],
        [own],
        lambda: [own],
    )


def _from_any(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    """Receive from any rank: chance decides which tensor gets which message; each comes once."""
    others = [member for member in members if member != rank]
    tensors = [_blank(op, number, shared) for _ in others]
    sources: list[int] = []

    def launch(asynchronous: bool) -> Any:
        if not asynchronous:
            sources.extend(dist.recv(tensor, None, group, op.tag) for tensor in tensors)
            return None
        works = [dist.irecv(tensor, None, group, op.tag) for tensor in tensors]
        return Works(works, lambda: sources.extend(members[w._source_rank()] for w in works))

    def right() -> Tensors:
        once = sorted(sources) == others
        return [given(op, number, source) for source in sources] if once else []

    return Bound(launch, tensors, [each.clone() for each in tensors], right)


def _batch(
    op: Op, number: int, rank: int, members: tuple[int, ...], group: Any, shared: bool
) -> Bound:
    place, size = members.index(rank), len(members)
    after, before = members[(place + 1) % size], members[place - 1]
    own, tensor = memory(given(op, number, rank), shared), _blank(op, number, shared)
    listed = [
        dist.P2POp(dist.isend, own, after, group, op.tag),
        dist.P2POp(dist.irecv, tensor, before, group, op.tag),
    ]
    random.Random(number * 7 + rank).shuffle(listed)

    def launch(asynchronous: bool) -> Any:
        works = Works(dist.batch_isend_irecv(listed))
        return works if asynchronous else works.wait()

    return Bound(launch, [tensor], [tensor.clone()], lambda: [given(op, number, before)])

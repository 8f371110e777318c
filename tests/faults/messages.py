"""Sends and receives, as `operations.bind` makes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from faults.operations import Planned
from faults.schedule import MESSAGES
from trials.layouts import Laid, Layout

NAME = "message"


@dataclass
class Works:
    """Several works as one."""

    works: list[Any]
    then: Callable[[], object] = lambda: None

    def wait(self, timeout: timedelta | None = None) -> None:
        for work in self.works:
            work.wait() if timeout is None else work.wait(timeout)
        self.then()


def message(make: Planned) -> None:
    """Send to the root, or receive there."""
    op, shape, later = make.planned, make.spec.shapes[0], make.spec.asynchronous
    if make.rank != make.spec.root:
        sent = make.given(NAME, shape)
        make.case.call = lambda: (dist.isend if later else dist.send)(
            sent, op.root, make.group, op.tag
        )
    elif op.kind == "any_source":
        _from_any(make)
    else:
        wanted = make.term(make.spec.members.index(op.source), NAME, shape)
        tensor = make.output(NAME, wanted)
        make.case.call = lambda: (dist.irecv if later else dist.recv)(
            tensor, op.source, make.group, op.tag
        )


def _from_any(make: Planned) -> None:
    """Receive from any rank: chance decides which tensor gets which message; each comes once."""
    members, tag, shape = make.spec.members, make.planned.tag, make.spec.shapes[0]
    others = [member for member in members if member != members[make.rank]]
    laid = [Laid(make.term(make.rank, NAME, shape), Layout(memory=make.memory)) for _ in others]
    sources: list[int] = []

    def call() -> Any:
        if not make.spec.asynchronous:
            sources.extend(dist.recv(each.given, None, make.group, tag) for each in laid)
            return None
        works = [dist.irecv(each.given, None, make.group, tag) for each in laid]
        return Works(works, lambda: sources.extend(members[w._source_rank()] for w in works))

    def trouble() -> str:
        if sorted(sources) != others:
            return f"from {sources}"
        terms = [make.term(members.index(source), NAME, shape) for source in sources]
        return "".join(each.trouble(term) for each, term in zip(laid, terms, strict=True))

    make.case.call, make.case.objects = call, trouble


def batch(make: Planned) -> None:
    """Send to the next rank and receive from the one before, in any order."""
    members, size, shape = make.spec.members, make.size, make.spec.shapes[0]
    before = (make.rank - 1) % size
    own, tensor = make.given(NAME, shape), make.output(NAME, make.term(before, NAME, shape))
    peers = (
        (dist.isend, own, members[(make.rank + 1) % size]),
        (dist.irecv, tensor, members[before]),
    )
    listed = [dist.P2POp(*each, make.group, make.planned.tag) for each in peers]
    random.Random(make.number * 7 + make.rank).shuffle(listed)

    def call() -> Any:
        works = Works(dist.batch_isend_irecv(listed))
        return works if make.spec.asynchronous else works.wait()

    make.case.call = call


MAKERS = dict(zip(MESSAGES, (message, message, batch), strict=True))

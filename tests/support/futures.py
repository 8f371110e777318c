"""Works whose futures callers look at as soon as a work is done."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from support.ranks import World

ROUNDS = 150


def _message(world: World) -> dist.Work:
    tensor, peer = torch.ones(3), world.rank ^ 1
    work = dist.isend(tensor, peer) if world.rank % 2 == 0 else dist.irecv(tensor, peer)
    assert work is not None
    return work


def _coalesced(world: World) -> dist.Work:
    with dist._coalescing_manager(async_ops=True) as block:
        for _ in range(3):
            dist.all_reduce(torch.ones(3))
    (work,) = block.works
    return work


KINDS: dict[str, Callable[[World], dist.Work | None]] = {
    "all_reduce": lambda _: dist.all_reduce(torch.ones(3), async_op=True),
    "reduce_scatter": lambda world: dist.reduce_scatter(
        torch.ones(1), [torch.ones(1)] * world.size, async_op=True
    ),
    "message": _message,
    "coalesced": _coalesced,
}


def futures_are_complete_with_their_works(world: World) -> None:
    """Assert it for every kind, asked for before and after, by wait() and by is_completed()."""
    for kind, issue in KINDS.items():
        for round_ in range(ROUNDS):
            work = issue(world)
            assert work is not None
            future = work.get_future() if round_ % 2 else None
            if round_ % 4 < 2:
                work.wait()
            else:
                while not work.is_completed():
                    pass
            assert (future or work.get_future()).done(), (kind, round_)
            if round_ % 4 >= 2:
                work.wait()

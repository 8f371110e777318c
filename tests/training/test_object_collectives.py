"""Python objects by torch's collectives of objects: their sizes first, then their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks


def _thing(rank: int) -> dict[str, Any]:
    """Return an object that grows with the rank: buffers are as long as the longest."""
    return {"rank": rank, "text": "é" * 500 * rank, "tensor": torch.arange(100 * rank)}


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    tensors = a.pop("tensor"), b.pop("tensor")
    return a == b and bool(torch.equal(*tensors))


def _all_gather_object(world: World) -> list[Any]:
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, _thing(world.rank))
    return [_same(found[rank], _thing(rank)) for rank in range(world.size)]


def _gather_object(world: World) -> list[Any]:
    checks = []
    for dst in range(world.size):
        found: list[Any] | None = [None] * world.size if world.rank == dst else None
        dist.gather_object(_thing(world.rank), found, dst=dst)
        if found is not None:
            checks += [_same(found[rank], _thing(rank)) for rank in range(world.size)]
    return checks


def _scatter_object_list(world: World) -> list[Any]:
    checks = []
    for src in range(world.size):
        mine: list[Any] = [None]
        things = [_thing(rank) for rank in range(world.size)] if world.rank == src else None
        dist.scatter_object_list(mine, things, src=src)
        checks.append(_same(mine[0], _thing(world.rank)))
    return checks


def _broadcast_object_list(world: World) -> list[Any]:
    checks = []
    for src in range(world.size):
        own = [_thing(src), None, "x" * 10000] if world.rank == src else [None] * 3
        things: list[Any] = own
        dist.broadcast_object_list(things, src=src)
        checks.append(_same(things[0], _thing(src)) and things[1:] == [None, "x" * 10000])
    return checks


def _send_object_list(world: World) -> list[Any]:
    """Send around a ring; even ranks send first, except the last."""
    before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    found: list[Any] = [None, None]
    if world.rank % 2 == 0 and world.rank != world.size - 1:
        dist.send_object_list([_thing(world.rank), world.rank], dst=after)
        source = dist.recv_object_list(found, src=before)
    else:
        source = dist.recv_object_list(found, src=before)
        dist.send_object_list([_thing(world.rank), world.rank], dst=after)
    return [_same(found[0], _thing(before)), found[1] == before, source == before]


def _in_a_subgroup(world: World) -> list[Any]:
    """Use ranks in reverse, without the first: source ranks are numbered as in the world."""
    members = list(range(1, world.size))
    group = dist.new_group(members)
    if world.rank == 0:
        return [True]
    found: list[Any] = [None] * len(members)
    dist.all_gather_object(found, _thing(world.rank), group=group)
    told: list[Any] = [world.rank]
    dist.broadcast_object_list(told, src=members[-1], group=group)
    at_last: list[Any] | None = [None] * len(members) if world.rank == members[-1] else None
    dist.gather_object(world.rank, at_last, dst=members[-1], group=group)
    checks = [_same(thing, _thing(rank)) for thing, rank in zip(found, members, strict=True)]
    return [*checks, told == [members[-1]], at_last in (None, members)]


CALLS: dict[str, Callable[[World], list[Any]]] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "scatter_object_list": _scatter_object_list,
    "broadcast_object_list": _broadcast_object_list,
    "send_object_list": _send_object_list,
    "in a subgroup": _in_a_subgroup,
}


def _call(world: World) -> dict[str, list[Any]]:
    world.init()
    return {name: call(world) for name, call in CALLS.items()}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_objects_arrive(size: int) -> None:
    for of_rank in run_ranks(size, _call):
        assert list(of_rank) == list(CALLS)
        assert all(all(checks) for checks in of_rank.values()), of_rank

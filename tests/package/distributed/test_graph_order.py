"""The order of collectives in compiled graphs is the program's, whatever a rank reads of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World

import fastcomm.distributed as fd
from fastcomm._distributed.operators import OPERATORS


def _name(world: World) -> str:
    # A graph that an earlier fastcomm has compiled is found by what the program says.
    torch.compiler.config.force_disable_caches = True
    torch._inductor.config.cpp.vec_isa_ok = False  # it would be found out anew
    world.init()
    name: str = dist.group.WORLD.group_name
    return name


def _read_in_turn(x: torch.Tensor, name: str, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sums of one size: each rank reads another one first."""
    double, triple = OPERATORS.all_reduce(x * 2, name), OPERATORS.all_reduce(x * 3, name)
    return (triple, double.sum()) if rank == 0 else (double, triple.sum())


@on_ranks(2)
def test_ranks_that_read_different_results(world: World) -> None:
    name, x = _name(world), torch.full((64,), float(world.rank + 1))
    expected = _read_in_turn(x, name, world.rank)
    found = torch.compile(_read_in_turn, fullgraph=True)(x, name, world.rank)
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))


def _large_and_small(x: torch.Tensor, name: str) -> tuple[torch.Tensor, ...]:
    """Operators of all kinds that need little memory in another order, with a barrier behind."""
    kept = OPERATORS.all_reduce(x * 2, name)
    large = x.repeat(1000) * 3
    OPERATORS.all_reduce_(large, name)
    total = large.sum()
    highest = OPERATORS.all_gather(x.repeat(900) * 4, name).max()
    small = x.repeat(10) * 5
    OPERATORS.all_reduce_(small, name)
    OPERATORS.barrier(name)
    return small.sum() + total, highest, kept


@on_ranks(2)
def test_a_rank_that_is_not_compiled(world: World) -> None:
    name, x = _name(world), torch.full((64,), float(world.rank + 1))
    expected = _large_and_small(x, name)
    called = [(call.operation, call.count) for call in fd.records()]
    compiled = torch.compile(_large_and_small, fullgraph=True)
    found = (compiled if world.rank == 0 else _large_and_small)(x, name)
    assert [(call.operation, call.count) for call in fd.records()] == called * 2
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))

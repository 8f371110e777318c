"""The order of collectives in compiled graphs is the program's, whatever a rank reads of them."""

from __future__ import annotations

from collections.abc import Callable

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


def _graphs_within(x: torch.Tensor, is_true: torch.Tensor, name: str) -> torch.Tensor:
    """Branches and a loop, of which some are not read, between calls that depend on nothing."""

    def branch(x: torch.Tensor) -> torch.Tensor:
        small = x * 2
        OPERATORS.all_reduce_(small, name)
        OPERATORS.barrier(name)
        return small

    def again(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return i + 1, OPERATORS.all_reduce(y, name)

    read: torch.Tensor = torch.cond(is_true, branch, lambda x: x * 4, (x,))
    OPERATORS.barrier(name)
    torch.cond(is_true, lambda x: OPERATORS.all_reduce(x.repeat(3), name), lambda x: x + 1, (x,))
    torch.while_loop(lambda i, y: i < 2, again, (torch.zeros((), dtype=torch.int64), x.repeat(4)))
    behind = OPERATORS.all_reduce(x.repeat(5), name)
    return behind.sum() + read


@on_ranks(2)
def test_graphs_within_a_graph(world: World) -> None:
    name, x = _name(world), torch.full((64,), float(world.rank + 1))
    compiled = torch.compile(_graphs_within, fullgraph=True)
    found = (compiled if world.rank == 0 else _graphs_within)(x, torch.tensor(True), name)
    assert torch.equal(found, torch.full((64,), 960.0 + 6.0))
    called = [(call.operation, call.count // 64) for call in fd.records()]
    reductions = [("all_reduce", times) for times in (3, 4, 4, 5)]
    assert called == [("all_reduce", 1), ("barrier", 0), ("barrier", 0), *reductions]


def _loss(x: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    """Four collectives side by side: their derivatives depend on nothing of each other's."""
    double = OPERATORS.all_reduce(x * 2, name)
    gathered = OPERATORS.all_gather(x.repeat(10) * weight, name)
    squares = OPERATORS.all_reduce(x * x, name)
    scattered = OPERATORS.reduce_scatter(x.repeat(8), name)
    return (double * double).sum() * gathered.sum() + scattered.square().sum() + squares.sum()


@on_ranks(2)
def test_backward_on_a_rank_that_is_not_compiled(world: World) -> None:
    name = _name(world)

    def gradients(loss: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        x = torch.full((64,), float(world.rank + 1), requires_grad=True)
        weight = torch.tensor(2.0, requires_grad=True)
        return list(torch.autograd.grad(loss(x, weight, name), (x, weight)))

    expected = gradients(_loss)
    called = [(call.operation, call.count) for call in fd.records()]
    assert len(called) == 8
    found = gradients(torch.compile(_loss, fullgraph=True) if world.rank == 0 else _loss)
    assert [(call.operation, call.count) for call in fd.records()] == called * 2
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))

"""Engines are asked in order: one from outside takes some calls, and fastcomm's own the rest."""

from __future__ import annotations

import pytest
import sim
import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")  # whose library has the toy engine


@on_ranks(3)
def test_an_engine_from_outside_serves_what_it_takes(world: World) -> None:
    native = sim.load()
    fastcomm._C.register_engine(native.toy_engine())
    world.init("fastcomm")
    own = torch.arange(8.0) + world.rank
    total = torch.arange(8.0) * world.size + sum(range(world.size))

    def reduced(given: torch.Tensor, **how: object) -> None:
        dist.all_reduce(given, **how)

    def calls() -> int:
        return native.toy_counts()[0]

    taken = own.clone()
    reduced(taken)
    assert torch.equal(taken, total)
    assert calls() == 1
    gaps = torch.stack([own, own], dim=1)[:, 0]
    work = dist.all_reduce(gaps, async_op=True)
    assert work.wait() and torch.equal(gaps, total)
    assert torch.equal(work.get_future().value()[0], total)
    assert calls() == 2
    # What it leaves goes on to the next one: another type, reduction, size or operation.
    for left, right, op in (
        (own.long(), total.long(), dist.ReduceOp.SUM),
        (own.clone(), total / world.size, dist.ReduceOp.AVG),
        (own.repeat(9), total.repeat(9), dist.ReduceOp.SUM),
    ):
        reduced(left, op=op)
        assert torch.equal(left, right), op
    dist.barrier()
    parts = [torch.empty(8) for _ in range(world.size)]
    dist.all_gather(parts, own)
    assert torch.equal(sum(parts), total)
    assert calls() == 2
    told = fastcomm.explain("all_reduce", own)
    assert (told.native, told.algorithm) == (False, "toy")
    assert told.reason == "a few floats are summed in the store"
    assert fastcomm.explain("all_reduce", own.long()).native
    dist.destroy_process_group()
    assert native.toy_counts() == (2, 1)


@on_ranks(1)
def test_what_is_no_engine_is_refused(world: World) -> None:
    sim.load()
    with pytest.raises(TypeError):
        fastcomm._C.register_engine(None)

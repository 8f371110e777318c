"""Memory that a late peer may still write to is nobody else's until that peer has left.

A call that starts after the others gave up writes nothing; one that was under way may. They do not
know which it was.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.patience import until
from support.ranks import World, run_outcomes
from support.segment import holds

import fastcomm

LARGE = 1 << 18
LATE = 1


def _hear(world: World, what: str, ranks: list[int]) -> None:
    for rank in ranks:
        world.hear(f"{rank} {what}")


def _input(rank: int) -> float:
    return 1.25 + 10 * rank


def _late(world: World, tensor: torch.Tensor, others: list[int], end: str) -> None:
    """Arrive when the others have given up, and end after all the others."""
    _hear(world, "gave up", others)
    caught = catch(dist.all_reduce, tensor)
    assert (caught.kind, caught.peer) == ("CollectiveTimeoutError", LATE), caught
    world.tell(f"{world.rank} arrived")
    _hear(world, "checked", others)
    if end == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
    world.tell(f"{world.rank} left")


def _in_time(
    world: World, holder: list[torch.Tensor], others: list[int], asynchronous: bool, end: str
) -> Caught:
    tensor = holder.pop()
    where = tensor.data_ptr()
    if asynchronous:
        work = dist.all_reduce(tensor, async_op=True)
        caught = catch(work.wait)
        del work
    else:
        caught = catch(dist.all_reduce, tensor)
    del tensor
    world.tell(f"{world.rank} gave up")
    first = fastcomm.empty(LARGE).fill_(-7)
    assert first.data_ptr() != where
    _hear(world, "arrived", [LATE])
    total = torch.full((64,), sum(map(_input, range(world.size)))).numpy().tobytes()
    assert not holds(total)
    assert first.eq(-7).all()
    dist.destroy_process_group()
    world.tell(f"{world.rank} left")
    _hear(world, "left", [rank for rank in others if rank != LATE])
    second = fastcomm.empty(LARGE)
    assert where not in (first.data_ptr(), second.data_ptr())
    world.tell(f"{world.rank} checked")
    if end == "is killed":
        until(lambda: fastcomm.empty(LARGE).data_ptr() == where, "the memory is free")
    else:
        _hear(world, "left", [LATE])
    third = fastcomm.empty(LARGE)
    assert third.data_ptr() == where
    assert third.count_nonzero() == 0
    return caught


def _one_is_late(world: World, asynchronous: bool, end: str) -> Caught | None:
    # Before everything else: its place is the first to be reused.
    holder = [fastcomm.empty(LARGE).fill_(_input(world.rank))]
    world.init()
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=0.4))
    others = [rank for rank in range(world.size) if rank != LATE]
    if world.rank == LATE:
        _late(world, holder.pop(), others, end)
        return None
    return _in_time(world, holder, others, asynchronous, end)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_memory_is_kept_from_use_until_the_late_rank(end: str, asynchronous: bool) -> None:
    outcomes = run_outcomes(
        3, _one_is_late, asynchronous, end, environment={"FASTCOMM_SEGMENT_MB": "32"}
    )
    killed = end == "is killed"
    assert outcomes[LATE].exitcode == (-signal.SIGKILL if killed else 0), outcomes[LATE]
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught = outcome.value
        assert (caught.kind, caught.peer) == ("CollectiveTimeoutError", LATE), caught


@on_ranks(3)
def test_memory_of_what_ended_well_is_free_at_once(world: World) -> None:
    tensor = fastcomm.empty(LARGE).fill_(1)
    where = tensor.data_ptr()
    world.init()
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.eq(world.size**2).all()
    del tensor
    assert fastcomm.empty(LARGE).data_ptr() == where

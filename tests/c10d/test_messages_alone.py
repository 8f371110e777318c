"""Sends and receives that nobody waits for: they move, and they end when a peer is gone."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.patience import ENDS, OPERATION
from support.ranks import World, run_outcomes


@on_ranks(2)
def test_a_message_moves_while_its_rank_is_in_another_group(world: World) -> None:
    """Leave a first message to an engine that is busy with another group."""
    world.init()
    limit = timedelta(seconds=OPERATION)
    others, ours = dist.new_group(timeout=limit), dist.new_group(timeout=limit)
    large, value = torch.full((1 << 19,), 3.0), torch.ones(4)
    if world.rank == 0:
        work = dist.all_reduce(value, group=others, async_op=True)
        time.sleep(0.1)  # now it is busy
        dist.isend(large, 1, group=ours).wait()
        work.wait()
        time.sleep(0.3)  # the progress thread has nothing to do, and forgets
        sent = dist.isend(large, 1, group=ours)
        dist.all_reduce(value, group=others)  # drives the other group alone
        sent.wait()
    else:
        time.sleep(0.2)
        dist.recv(torch.empty_like(large), 0, group=ours)
        dist.all_reduce(value, group=others)
        got = torch.empty_like(large)
        dist.recv(got, 0, group=ours)
        assert torch.equal(got, large)
        dist.all_reduce(value, group=others)


def _polled(world: World) -> str:
    world.init()
    if world.rank == 1:
        time.sleep(0.2)
        os._exit(3)
    work = dist.irecv(torch.zeros(2), 1)
    end = time.monotonic() + ENDS
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    assert work.is_completed()
    return catch(work.wait).kind


def test_who_polls_learns_of_a_death() -> None:
    assert run_outcomes(2, _polled)[0].value == "PeerLostError"

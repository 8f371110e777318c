"""A timeout longer than the clock counts is the longest, not one that has passed."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from support.ranks import World, run_ranks


def _wait_for_ever(world: World) -> list[float]:
    replace(world, timeout=timedelta(days=110_000)).init()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    if world.rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    patient = timedelta(days=110_000)
    if world.rank == 0:
        time.sleep(0.1)  # the other rank waits
    dist.all_reduce(tensor, async_op=True).wait(patient)
    start = dist.isend if world.rank == 0 else dist.irecv
    message = start(tensor, 1 - world.rank)
    assert message is not None
    message.wait(patient)
    return tensor.tolist()


def test_a_timeout_beyond_the_clock() -> None:
    assert run_ranks(2, _wait_for_ever) == [[4.0] * 3] * 2

"""A timeout longer than the clock counts is the longest, not one that has passed."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World


@pytest.mark.parametrize("patient", [timedelta(days=110_000), timedelta.max])
@on_ranks(2, environments=TRANSPORTS)
def test_a_timeout_beyond_the_clock(world: World, patient: timedelta) -> None:
    replace(world, timeout=patient).init()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    if world.rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    if world.rank == 0:
        time.sleep(0.1)  # the other rank waits
    dist.all_reduce(tensor, async_op=True).wait(patient)
    start = dist.isend if world.rank == 0 else dist.irecv
    message = start(tensor, 1 - world.rank)
    assert message is not None
    message.wait(patient)
    assert tensor.tolist() == [4.0] * 3


@on_ranks(2, environments=TRANSPORTS)
def test_a_group_whose_timeout_is_zero_waits_for_ever(world: World) -> None:
    dist.init_process_group(
        "fastcomm",
        store=dist.FileStore(f"{world.directory}/never", world.size),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(0),
    )
    tensor = torch.ones(3)
    if world.rank == 1:
        time.sleep(0.5)
    dist.all_reduce(tensor)
    dist.barrier()
    assert tensor.tolist() == [2.0] * 3

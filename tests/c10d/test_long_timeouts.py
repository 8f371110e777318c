"""A timeout longer than the clock counts is the longest, not one that has passed."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks


def _wait_for_ever(world: World, patient: timedelta) -> list[float]:
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
    return tensor.tolist()


@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize("patient", [timedelta(days=110_000), timedelta.max])
def test_a_timeout_beyond_the_clock(patient: timedelta, transport: str) -> None:
    environment = {"FASTCOMM_TRANSPORT": transport}
    assert run_ranks(2, _wait_for_ever, patient, environment=environment) == [[4.0] * 3] * 2


def _never(world: World) -> float:
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
    return tensor[0].item()


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_a_group_whose_timeout_is_zero_waits_for_ever(transport: str) -> None:
    assert run_ranks(2, _never, environment={"FASTCOMM_TRANSPORT": transport}) == [2.0, 2.0]

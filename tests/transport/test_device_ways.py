"""Ways for the devices of processes to reach each other's memory, where not all ways work."""

from __future__ import annotations

import re
import threading

import pytest
import sim
import torch
import torch.distributed as dist
from support.direct import init
from support.ranks import World, run_ranks

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")

NO_HANDLES = {"SIM_IPC": "0"}
NO_DESCRIPTORS = {**NO_HANDLES, "SIM_DESCRIPTORS": "0", "SIM_FABRIC": "1"}


def _sums(world: World) -> tuple[str, bool]:
    """Return `explain`'s reason, and True if tensors can lie in memory that all have mapped."""
    device = init(world)
    ordinary = torch.full((50000,), world.rank + 1.0, device=device)
    dist.all_reduce(ordinary)
    in_place = fastcomm.empty(50000, device=device).fill_(world.rank + 1.0)
    dist.all_reduce(in_place)
    assert ordinary.unique().tolist() == in_place.unique().tolist() == [6.0]
    return fastcomm.explain("all_reduce", ordinary).reason, fastcomm.is_shared(in_place)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, ": they meet, one kernel"),
        (NO_HANDLES, r"Mapped by descriptor, not by handle: rank 0: cudaIpc\w+: operation not"),
        (NO_DESCRIPTORS, "Mapped by fabric, not by handle: .*; descriptor: rank 0: cuMemCreate"),
        ({"FASTCOMM_IPC": "descriptor"}, ": they meet, one kernel"),
    ],
    ids=["handles", "descriptors", "fabric", "as set"],
)
def test_the_first_way_that_works_is_used_and_said(
    environment: dict[str, str], reason: str
) -> None:
    for said, in_place in run_ranks(3, _sums, environment=environment):
        assert re.search(reason, said), said
        assert ("Mapped by" in reason) == ("Mapped by" in said), said
        assert in_place


def _goes_while_it_is_read(world: World) -> list[float]:
    """Destroy a group, then free its last tensor, which a stream has not read yet."""
    device = init(world)
    dist.all_reduce(torch.ones(1, device=device))
    data = fastcomm.empty(50000, device=device).fill_(3.0)
    dist.all_reduce(data)
    assert fastcomm.is_shared(data)
    copied = data.to(torch.device("sim", 2 + world.rank))  # of no rank, with access too
    dist.destroy_process_group()
    world.init("gloo", "again")
    dist.barrier()  # all have left
    gate = sim.load().Gate(world.rank, torch.sim.current_stream().stream_id)
    total = data.sum()
    threading.Timer(0.5, gate.open).start()
    del data
    torch.sim.synchronize()
    return [total.item(), copied.sum().item()]


@pytest.mark.parametrize("way", ["handle", "descriptor"])
def test_memory_goes_behind_the_work_that_reads_it(way: str) -> None:
    environment = {"FASTCOMM_IPC": way}
    assert run_ranks(2, _goes_while_it_is_read, environment=environment) == [[300000.0] * 2] * 2

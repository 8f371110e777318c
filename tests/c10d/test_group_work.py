"""What works of all engines have in common."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.flight import dump
from support.futures import futures_are_complete_with_their_works
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks

CALLS = 4000


pytestmark = pytest.mark.usefixtures("recorder_as_asked")


def _entries_of_works(world: World) -> tuple[int, int]:
    world.init()
    data = torch.zeros(1)
    buffer = torch.zeros(1)
    for _ in range(CALLS // 40):
        works = [dist.all_reduce(data, async_op=True) for _ in range(20)]
        for _ in range(10):  # a message ends as soon as the peer has come, on any thread
            if world.rank == 0:
                works += [dist.isend(data, 1), dist.irecv(buffer, 1)]
            else:
                works += [dist.irecv(buffer, 0), dist.isend(data, 0)]
        for work in works:
            assert work is not None
            work.wait()
    entries = dump()["entries"]
    return len(entries), sum(entry["state"] == "completed" for entry in entries)


def test_a_work_that_ends_while_it_gets_its_entry() -> None:
    """The thread that issues a call and the one that carries it out meet in one work."""
    found = run_ranks(2, _entries_of_works, environment={"TORCH_FR_BUFFER_SIZE": str(2 * CALLS)})
    assert found == [(CALLS, CALLS)] * 2


@on_ranks(2)
def test_futures_are_complete_with_their_works(world: World) -> None:
    """DDP takes the value of a future right after the wait for its work."""
    world.init()
    futures_are_complete_with_their_works(world)


@on_ranks(2, environment={"FASTCOMM_TRANSPORT": "gloo"})
def test_futures_are_complete_with_their_works_of_gloo(world: World) -> None:
    world.init()
    futures_are_complete_with_their_works(world)

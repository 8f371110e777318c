"""Streams of a group on its devices. On simulated devices."""

from __future__ import annotations

from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.direct import joined
from support.ranks import World, run_ranks

pytestmark = pytest.mark.usefixtures("simulated")


def _streams(world: World) -> list[tuple[int, int]]:
    """Return the streams in use, of normal and of high priority, after each kind of work."""
    device = joined(world)
    used = sim.load().streams_used
    found = [used(world.rank)]
    data = torch.ones(3, device=device)
    work: Any = dist.all_reduce(data, async_op=True)
    work.wait()
    found.append(used(world.rank))
    work = dist.all_reduce(data, async_op=True)
    work.get_future().wait()
    found.append(used(world.rank))
    others = [torch.ones(3, device=device) for _ in range(2)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for other in others:
            dist.all_reduce(other)
    manager.works[0].get_future().wait()
    found.append(used(world.rank))
    assert data.tolist() == [4.0] * 3 and torch.cat(others).tolist() == [2.0] * 6
    return found


def test_streams_of_groups_have_high_priority() -> None:
    """The one of operations, the one of marks, and the one on which several futures end."""
    for found in run_ranks(2, _streams):
        normal, high = zip(*found, strict=True)
        assert high[0] <= high[1] < high[2] < high[3], found
        assert normal[:3] == (0, 0, 0), found  # torch calls back from futures on others

"""Devices of a group between processes: warnings of what they are, and its streams there.

On simulated devices.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.direct import init, joined
from support.patience import until
from support.ranks import World, run_ranks

pytestmark = pytest.mark.usefixtures("simulated")


def _said(world: World) -> list[str]:
    """Return what two groups say, of several operations each."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fastcomm").addHandler(handler)
    device = init(world)
    other = dist.new_group(backend="cpu:fastcomm,sim:fastcomm")
    for group in (None, other):
        for _ in range(2):
            dist.all_reduce(data := torch.ones(3, device=device), group=group)
            assert data.tolist() == [world.size] * 3
    return said


@pytest.mark.parametrize("route", ["auto", "pinned"])
def test_a_device_that_ends_long_kernels_is_told_of(route: str) -> None:
    environment = {"SIM_DISPLAY": "1", "FASTCOMM_ROUTE": route}
    of_rank = run_ranks(2, _said, environment=environment)
    told = [[text for text in said if "display" in text] for said in of_rank]
    assert [len(texts) for texts in told] == [0, 2], of_rank
    for text in told[1]:
        assert re.search(r"^sim:1 drives .* timeout of \d+ s: .*launch timed out", text), text


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
    until(lambda: used(world.rank)[0] != 0, "the future is not completed")
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
        # The thread that completes futures calls back on one of torch's pool.
        assert normal[:3] == (0, 0, 1), found

"""Windows in pinned memory of the host, where devices do not reach each other's memory."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from support.direct import ON_HOST, init, reason_and_sum
from support.ranks import World, run_ranks

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")

PINNED = {"FASTCOMM_ROUTE": "pinned"}
# Reasons of `explain`: pinned memory is used instead of the devices', or nothing is.
PINNED_INSTEAD = f"{ON_HOST}.*Not each other's: .*"
NEITHER = "not from device to device: .*"
LITTLE_ROOM = {"FASTCOMM_SEGMENT_MB": "12", "FASTCOMM_BLOCK_BYTES": "65536"}


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (
            {"SIM_IPC": "0", "SIM_VMM": "0"},
            f"{PINNED_INSTEAD}rank 0: .*operation not supported.*; descriptor: rank 0: .*_NOT_SUP",
        ),
        ({"SIM_LINKS": "1-2 none"}, f"{PINNED_INSTEAD}the window of rank [12].*rank 2"),
        ({"SIM_LINKS": "0-2 reads"}, f"{PINNED_INSTEAD}a trial has given wrong numbers"),
        ({"SIM_LINKS": "0-1 writes"}, f"{PINNED_INSTEAD}a trial has "),
        (PINNED, f"{PINNED_INSTEAD}rank 0: FASTCOMM_ROUTE=pinned"),
        # FASTCOMM_IPC leaves no other way to reach the devices' memory.
        ({"FASTCOMM_IPC": "fabric"}, f"{PINNED_INSTEAD}by fabric: rank 0: cuMemCreate: .*NOT_SUP"),
        (
            {"SIM_IPC": "0", "SIM_VMM": "0", "SIM_PINNED": "0"},
            f"{NEITHER}rank 0: .*not supported.*; through pinned memory",
        ),
        ({**PINNED, **LITTLE_ROOM}, f"{NEITHER}pinned memory of the host: .*FASTCOMM_SEGMENT_MB"),
        ({"FASTCOMM_ROUTE": "nccl"}, f"{NEITHER}rank 0: FASTCOMM_ROUTE=nccl"),
    ],
)
def test_what_serves_instead_and_why(environment: dict[str, str], reason: str) -> None:
    for why, data in run_ranks(3, reason_and_sum, environment=environment, group_timeout=6):
        assert re.search(reason, why), why
        assert data == [18.0] * 3


def _again(world: World) -> None:
    device = init(world)
    for turn in range(6):
        group = dist.new_group(backend="cpu:fastcomm,sim:fastcomm")
        data = torch.full((5,), float(turn), device=device)
        dist.all_reduce(data, group=group)
        assert data.tolist() == [2.0 * turn] * 5
        assert ON_HOST in fastcomm.explain("all_reduce", data, group=group).reason
        dist.destroy_process_group(group)


def test_windows_go_back_to_the_segment() -> None:
    """A segment has room for at most three groups at a time."""
    run_ranks(2, _again, environment={**PINNED, "FASTCOMM_SEGMENT_MB": "80"})

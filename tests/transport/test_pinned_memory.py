"""Windows in pinned memory of the host, where devices do not reach each other's memory."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import (
    DTYPES,
    ON_HOST,
    check_bits,
    init,
    is_direct,
    reason_and_sum,
    small_net,
    train,
)
from support.ranks import World, run_outcomes, run_ranks
from support.tree import same_bits
from torch import nn

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")

PINNED = {"FASTCOMM_ROUTE": "pinned"}
# Several rounds for most messages; one launch for a few.
SMALL = {"FASTCOMM_WINDOW_BYTES": "4096", "FASTCOMM_ONE_SHOT_BYTES": "1024"}


def _bits(world: World) -> None:
    device = init(world)
    for each, dtype in enumerate(DTYPES[world.size % 2 :: 2]):
        for count in (0, 1, 6, (1023, 2048, 4100)[each]):
            check_bits(world, device, dtype, count)
    assert is_direct(torch.ones(3, device=device), way=ON_HOST)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_bits_of_the_cpu(size: int) -> None:
    run_ranks(size, _bits, environment={**PINNED, **SMALL})


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (
            {"SIM_IPC": "0", "SIM_VMM": "0"},
            "rank 0: .*operation not supported.*; descriptor: rank 0: .*_NOT_SUPPORTED",
        ),
        ({"SIM_LINKS": "1-2 none"}, "the window of rank [12].*rank 2"),
        ({"SIM_LINKS": "0-2 reads"}, "a trial has given wrong numbers"),
        ({"SIM_LINKS": "0-1 writes"}, "a trial has "),
        (PINNED, "rank 0: FASTCOMM_ROUTE=pinned"),
    ],
)
def test_it_serves_where_devices_do_not_reach_each_other(
    environment: dict[str, str], reason: str
) -> None:
    for why, data in run_ranks(3, reason_and_sum, environment=environment, group_timeout=6):
        assert re.search(f"{ON_HOST}.*Not each other's: .*{reason}", why), why
        assert data == [18.0] * 3


def test_a_segment_without_room_is_said() -> None:
    environment = {**PINNED, "FASTCOMM_SEGMENT_MB": "12", "FASTCOMM_BLOCK_BYTES": "65536"}
    for why, data in run_ranks(2, reason_and_sum, environment=environment):
        assert re.search("pinned memory of the host: .*FASTCOMM_SEGMENT_MB", why), why
        assert data == [6.0] * 3


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
    """There is room for at most three groups at a time."""
    run_ranks(2, _again, environment={**PINNED, "FASTCOMM_SEGMENT_MB": "80"})


def _dies(world: World) -> tuple[list[Caught], bool]:
    device = init(world)
    data = torch.ones(4, device=device)
    dist.all_reduce(data)
    torch.sim.synchronize()
    if world.rank == 1:
        for survivor in (0, 2):  # a call that comes later is not begun
            world.hear(f"issued {survivor}")
        os.kill(os.getpid(), signal.SIGKILL)
    work: Any = dist.all_reduce(data, async_op=True)
    world.tell(f"issued {world.rank}")
    torch.sim.synchronize()
    is_nan = bool(data.isnan().all().item())
    caught = [catch(work.wait), catch(dist.all_reduce, data)]
    dist.destroy_process_group()
    survivors = World(world.rank // 2, 2, world.directory)
    survivors.init("cpu:fastcomm,sim:fastcomm", "after")
    dist.all_reduce(data := torch.ones(4, device=device))
    assert data.tolist() == [2.0] * 4 and is_direct(data, way=ON_HOST)
    return caught, is_nan


def test_survivors_go_on() -> None:
    outcomes = run_outcomes(3, _dies, environment=PINNED)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught, is_nan = outcome.value
        assert [(one.kind, one.peer) for one in caught] == [("PeerLostError", 1)] * 2, caught
        assert is_nan


def _train_ddp(world: World) -> None:
    results = []
    for device in (init(world), torch.device("cpu")):
        net = small_net().to(device)
        train(world, nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.004), device)
        results.append([parameter.detach().cpu() for parameter in net.parameters()])
    assert all(map(same_bits, *results))
    assert is_direct(torch.ones(1, device=f"sim:{world.rank}"), way=ON_HOST)


def test_stock_ddp_has_the_weights_of_the_cpu() -> None:
    run_ranks(3, _train_ddp, environment=PINNED)

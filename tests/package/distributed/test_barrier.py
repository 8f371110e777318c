"""monitored_barrier: everybody arrives, or rank 0 says who does not."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import TRANSPORTS, on_ranks
from support.patience import SOON
from support.ranks import World, run_ranks

import fastcomm


@on_ranks(1, 3)
def test_everybody_comes(world: World) -> None:
    world.init()
    fastcomm.monitored_barrier()
    fastcomm.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    time.sleep(0.05 * world.rank)
    fastcomm.monitored_barrier()


def _two_stay_away(world: World, wait_all_ranks: bool) -> list[Caught]:
    world.init()
    dist.barrier()
    if world.rank in (1, 2):
        for rank in (0, 3):
            world.hear(f"rank {rank} has given up")
        return []
    limit = timedelta(seconds=0.3 if world.rank == 0 else 20)
    caught = [catch(fastcomm.monitored_barrier, None, limit, wait_all_ranks), catch(dist.barrier)]
    world.tell(f"rank {world.rank} has given up")
    return caught


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("wait_all_ranks", "named"), [(False, "Rank 1"), (True, "Ranks 1, 2")])
def test_who_is_missing_is_named(wait_all_ranks: bool, named: str, transport: str) -> None:
    environment = TRANSPORTS[transport]
    first, _, _, other = run_ranks(4, _two_stay_away, wait_all_ranks, environment=environment)
    assert {caught.kind for caught in (*first, *other)} == {"CollectiveTimeoutError"}
    assert f"{named} failed to pass monitoredBarrier" in first[0].text
    assert 0.3 <= first[0].seconds < SOON and first[1].seconds < SOON
    told = ["Rank 3 successfully reached monitoredBarrier"]
    if transport == "gloo":  # rank 0's words may come first
        told.append(f"gave the group up: Gloo: [Rank 0]: {named} failed to pass monitoredBarrier")
    assert any(text in other[0].text for text in told), other[0].text


@on_ranks(1)
def test_another_backend_is_refused(world: World) -> None:
    world.init("gloo")
    with pytest.raises(ValueError, match="backend fastcomm"):
        fastcomm.monitored_barrier()

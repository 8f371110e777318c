"""Failures of collectives between processes with a device each, on simulated devices."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import ON_DEVICES, ON_HOST, init, is_direct
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.usefixtures("simulated")


def _fails(world: World, how: str, way: str = ON_DEVICES) -> tuple[list[Caught], float, bool]:
    device = init(world)
    data = torch.ones(4, device=device)
    dist.all_reduce(data)
    torch.sim.synchronize()
    time.sleep(0.3)  # so that nobody is looking any more
    if how == "late":
        dist.group.WORLD._get_backend(device).set_timeout(timedelta(seconds=1))
    begun = time.monotonic()
    if how == "death" and world.rank == 1:
        for survivor in (0, 2):  # a call that comes later is not begun
            world.hear(f"issued {survivor}")
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late" and world.rank == 1:
        world.hear("given up")
    count = 4 + (world.rank if how == "mismatch" else 0)
    data = torch.ones(count, device=device)
    other = how == "reduction" and world.rank == 1
    op = dist.ReduceOp.MAX if other else dist.ReduceOp.SUM
    work: Any = dist.all_reduce(data, op=op, async_op=True)
    world.tell(f"issued {world.rank}")
    torch.sim.synchronize()
    waited = time.monotonic() - begun
    caught = [catch(work.wait)]
    world.tell("given up")
    is_nan = bool(data.isnan().all().item())
    caught += [catch(dist.all_reduce, data), catch(dist.all_reduce, torch.ones(2))]
    assert work.is_completed() and not work.is_success()
    dist.destroy_process_group()
    assert time.monotonic() - begun < 2 * SOON
    if how == "death":
        survivors = World(world.rank // 2, 2, world.directory)
        survivors.init("cpu:fastcomm,sim:fastcomm", "after")
        dist.all_reduce(data := torch.ones(4, device=device))
        assert data.tolist() == [2.0] * 4 and is_direct(data, way=way)
    return caught, waited, is_nan


@pytest.mark.parametrize(
    ("environment", "way"), [({}, ON_DEVICES), ({"FASTCOMM_ROUTE": "pinned"}, ON_HOST)]
)
def test_a_rank_dies(environment: dict[str, str], way: str) -> None:
    """The survivors form a group of their own."""
    outcomes = run_outcomes(3, _fails, "death", way, environment=environment)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught, waited, is_nan = outcome.value
        assert [(one.kind, one.peer) for one in caught] == [("PeerLostError", 1)] * 3, caught
        assert is_nan and waited < SOON and outcome.exitcode == 0


def test_a_rank_is_late() -> None:
    outcomes = run_ranks(2, _fails, "late")
    for rank, (caught, _, is_nan) in enumerate(outcomes):
        assert {one.kind for one in caught} == {"CollectiveTimeoutError"}, caught
        assert "rank 1 has not come" in caught[0].text and caught[0].peer == 1
        assert is_nan == (rank == 0)  # the late call is not begun
    assert 0.9 < outcomes[0][1] < SOON  # not the default, of half an hour


def test_a_late_call_that_is_begun_is_noticed() -> None:
    _, (_, _, is_nan) = run_ranks(2, _fails, "late", environment={"FC_CONTROL": "no_first_look"})
    assert is_nan


def test_ranks_call_different_operations() -> None:
    for caught, waited, is_nan in run_ranks(2, _fails, "mismatch"):
        assert {one.kind for one in caught} == {"CollectiveMismatchError"}, caught
        assert "4 elements" in caught[0].text and "5 elements" in caught[0].text
        assert is_nan and waited < SOON


def test_ranks_call_different_reductions() -> None:
    for caught, waited, is_nan in run_ranks(3, _fails, "reduction"):
        assert {one.kind for one in caught} == {"CollectiveMismatchError"}, caught
        assert "all_reduce(max," in caught[0].text and "all_reduce(sum," in caught[0].text, caught
        assert "rank 1 is the odd one" in caught[0].text and caught[0].peer == 1, caught
        assert is_nan and waited < SOON


def _loads(world: World, where: str) -> tuple[Caught, float]:
    """Wait in the driver, for a device that waits for a rank which dies."""
    device = init(world)
    data = torch.ones(4, device=device)
    dist.all_reduce(data)
    torch.sim.synchronize()
    if world.rank == 1:
        world.hear("issued")
        time.sleep(0.5)  # the other's threads look in vain by then
        os.kill(os.getpid(), signal.SIGKILL)
    work: Any = dist.all_reduce(data, async_op=True)
    loading = threading.Thread(target=sim.load().load_lazily, args=(world.rank,))
    loading.start()
    world.tell("issued")
    begun = time.monotonic()
    if where == "in a load":
        loading.join()
        caught = catch(work.wait)
    elif where == "in a query":
        caught = catch(_until_completed, work)
    else:
        caught = catch(work.wait, timedelta(seconds=SOON))
    waited = time.monotonic() - begun
    loading.join()
    dist.destroy_process_group()
    return caught, waited


def _until_completed(work: Any) -> None:
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()


@pytest.mark.parametrize("where", ["in a load", "in a query", "on the host"])
def test_a_rank_dies_while_a_thread_is_in_the_driver(where: str) -> None:
    """CUDA's calls of other threads do not return meanwhile."""
    survivor, _ = run_outcomes(2, _loads, where)
    assert survivor.error is None, survivor.error
    caught, waited = survivor.value
    assert (caught.kind, caught.peer) == ("PeerLostError", 1), caught
    assert 0.5 < waited < 0.5 + SOON / 10, waited


def test_without_looks_at_the_host_its_death_is_seen_when_the_driver_returns() -> None:
    """That is when the device has waited for the dead rank until the timeout."""
    environment = {"FC_CONTROL": "no_host_look"}
    survivor, _ = run_outcomes(2, _loads, "in a load", environment=environment, group_timeout=4)
    assert survivor.error is None, survivor.error
    caught, waited = survivor.value
    assert caught.peer == 1 and waited > 3.9, (caught, waited)


def _once_more(world: World) -> list[float]:
    """Form a group after a failure: the process is as good as new."""
    device = init(world)
    for turn in range(3):
        data = torch.ones(4 + world.rank, device=device)
        dist.all_reduce(data)
        torch.sim.synchronize()
        catch(dist.all_reduce, data)
        dist.destroy_process_group()
        world.init("cpu:fastcomm,sim:fastcomm", f"again{turn}")
    dist.all_reduce(data := torch.ones(4, device=device))
    return data.tolist()


def test_a_new_group_after_a_failure() -> None:
    assert run_ranks(2, _once_more) == [[2.0] * 4] * 2


def _said_while_leaving(world: World) -> str:
    path = Path(world.directory, f"said by {world.rank}")
    with path.open("w") as file:
        os.dup2(file.fileno(), 2)
        dist.destroy_process_group()
    return path.read_text()


def _unseen(world: World) -> str:
    """Return what is said where nobody waits for an operation that has failed."""
    device = init(world)
    dist.all_reduce(torch.ones(2, device=device))
    dist.all_reduce(torch.ones(2 + world.rank, device=device), async_op=True)
    torch.sim.synchronize()
    return _said_while_leaving(world)


def test_a_failure_that_nobody_has_seen_is_said_at_the_end() -> None:
    for said in run_ranks(2, _unseen):
        assert re.search(r"fastcomm: \[rank . of 2.*called all_reduce", said), said


def _ends_well(world: World) -> str:
    device = init(world)
    dist.all_reduce(torch.ones(2, device=device))
    return _said_while_leaving(world)


def test_a_group_that_ends_well_says_nothing() -> None:
    for said in run_ranks(2, _ends_well):
        assert "fastcomm" not in said, said

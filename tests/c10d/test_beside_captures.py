"""Groups on devices beside captures of other threads, which must survive. On simulated devices.

Captures are in CUDA's global mode, as ``torch.cuda.graph`` begins them: an unsafe call of any
thread makes them fail, and so does a wait for the whole device.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.direct import SMALL, joined
from support.patience import OPERATION
from support.ranks import World, run_ranks

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")


def _living(world: World) -> tuple[int, int]:
    """Return how many windows and segments there are on this rank's device, and what is pinned."""
    living = sim.load().living
    return living(world.rank, 2 << 20), living(-1, 0)


@contextmanager
def _captured(
    device: torch.device, work: Callable[[], Any] = lambda: None
) -> Iterator[Callable[[], None]]:
    """Capture on another thread meanwhile; raise if that capture does not end well.

    ``work`` is captured, between two operations of torch's own. Yields what ends the capture
    before the body is over.
    """
    begun, over = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    data = torch.zeros(10, device=device)
    torch.sim.synchronize()

    def capture() -> None:
        try:
            torch.sim.set_device(device)
            stream = torch.Stream(device)
            with torch.sim.graph(stream) as graph:
                data.add_(1.0)
                work()
                begun.set()
                assert over.wait(OPERATION)
                data.add_(1.0)
            assert "add" in graph.nodes()[-1], graph.nodes()
        except BaseException as error:
            failures.append(error)
        begun.set()

    thread = threading.Thread(target=capture)
    thread.start()
    assert begun.wait(OPERATION)
    try:
        yield over.set
    finally:
        over.set()
        thread.join()
    assert not failures, failures


def _uses(device: torch.device) -> None:
    """Let a group do all that it does, without asking anything of the device ourselves."""
    data = torch.ones(3000, device=device)
    dist.all_reduce(data)
    work: Any = dist.all_reduce(data, async_op=True)
    while not work.is_completed():
        pass
    dist.broadcast(data, 0)
    dist.all_gather_into_tensor(torch.empty(6000, device=device), data)


def _while_in_use(world: World) -> float:
    device = joined(world)
    with _captured(device):
        _uses(device)
        _uses(device)
    torch.sim.synchronize()
    data = torch.ones(1, device=device)
    dist.all_reduce(data)
    return data.item()


def test_operations() -> None:
    assert run_ranks(2, _while_in_use, environment=SMALL) == [2.0] * 2


def _formed_and_left(world: World) -> None:
    device = joined(world)
    with _captured(device):
        group = dist.new_group()
        dist.all_reduce(torch.ones(3000, device=device), group=group)
        dist.destroy_process_group(group)
        del group
        gc.collect()


@pytest.mark.parametrize("route", ["auto", "pinned"])
def test_a_group_is_formed_and_left(route: str) -> None:
    run_ranks(2, _formed_and_left, environment={**SMALL, "FASTCOMM_ROUTE": route})


def _outlived(world: World) -> bool:
    """Let go of the last tensor of a group that is gone; return whether all is freed."""
    device = joined(world)
    before = _living(world)
    group = dist.new_group()
    dist.all_reduce(torch.ones(1, device=device), group=group)
    data = fastcomm.empty(3000, device=device, group=group).fill_(1.0)
    assert fastcomm.is_shared(data)
    dist.all_reduce(data, group=group)
    used = data * 2
    dist.destroy_process_group(group)
    del group
    gc.collect()
    dist.barrier()
    with _captured(device):
        del data
        gc.collect()
        dist.all_reduce(torch.ones(3000, device=device))
    assert used.unique().tolist() == [4.0]
    del used
    # Another group's windows: with them, what is due is freed.
    group = dist.new_group()
    dist.all_reduce(torch.ones(1, device=device), group=group)
    dist.destroy_process_group(group)
    dist.barrier()
    del group
    gc.collect()
    sim.load().sweep()
    return _living(world) == before


def test_a_tensor_outlives_its_group() -> None:
    assert run_ranks(2, _outlived, environment=SMALL) == [True] * 2


def _left_while_captured(world: World) -> tuple[bool, bool]:
    """Destroy a group whose operation is captured, until soon; tell if it waited, and freed all."""
    device = joined(world)
    data = torch.ones(3000, device=device)
    torch.sim.synchronize()
    before = _living(world)
    group = dist.new_group()
    dist.all_reduce(data, group=group)
    torch.sim.synchronize()
    windows, pinned = _living(world)
    assert windows > before[0] and pinned > before[1]
    ended = threading.Event()
    with _captured(device, lambda: dist.all_reduce(data, group=group)) as end:

        def finish() -> None:
            ended.set()
            end()

        threading.Timer(0.3, finish).start()
        dist.destroy_process_group(group)
        waited = ended.is_set()
    group = None
    gc.collect()
    dist.barrier()
    sim.load().sweep()
    return waited, _living(world) == before


def test_a_group_is_left_while_its_operation_is_captured() -> None:
    assert run_ranks(2, _left_while_captured, environment=SMALL) == [(True, True)] * 2


def _left_by_who_captures(world: World) -> tuple[str, list[float]]:
    """Destroy a group in the very capture that its operation is part of."""
    device = joined(world)
    data, other = torch.ones(3000, device=device), torch.zeros(10, device=device)
    group = dist.new_group()
    dist.all_reduce(data, group=group)
    torch.sim.synchronize()
    stream = torch.Stream(device)
    path = Path(world.directory, f"said by {world.rank}")
    with path.open("w") as file, torch.sim.graph(stream):
        dist.all_reduce(data, group=group)
        error, _ = os.dup(2), os.dup2(file.fileno(), 2)
        dist.destroy_process_group(group)
        os.dup2(error, 2)
        other.add_(1.0)
    with torch.sim.graph(stream) as graph:
        other.add_(1.0)
    with stream:
        graph.replay()
        return path.read_text(), other.unique().tolist()


def test_a_group_is_left_by_the_thread_that_captures() -> None:
    for said, values in run_ranks(2, _left_by_who_captures, environment=SMALL):
        assert "stays allocated: the current stream of its device is captured" in said
        assert values == [1.0]


def _contexts(world: World, environment_device: int) -> list[int]:
    """Use a device that nobody has made current; return those with a context."""
    sim.load()
    device = torch.device("sim", environment_device + world.rank)
    world.init("cpu:fastcomm,sim:fastcomm")
    data = torch.ones(3000, device=device)
    for _ in range(2):
        dist.all_reduce(data)
        work: Any = dist.all_reduce(data, async_op=True)
        while not work.is_completed():
            pass
    shared = fastcomm.empty(3000, device=device).fill_(1.0)
    dist.all_reduce(shared)
    dist.destroy_process_group()
    del shared
    gc.collect()
    found: list[int] = sim.load().contexts()
    return found


@pytest.mark.parametrize("route", ["auto", "pinned"])
def test_no_context_on_a_device_that_is_not_used(route: str) -> None:
    found = run_ranks(2, _contexts, 1, environment={**SMALL, "FASTCOMM_ROUTE": route})
    assert found == [[1], [2]]

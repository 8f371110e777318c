"""Collectives between devices, captured into graphs and replayed. On simulated devices.

Between eager calls: ``tests/gpu/test_between_processes.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import SMALL, joined
from support.ranks import World, run_ranks

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")


def _ready(world: World) -> tuple[torch.Tensor, torch.Tensor, torch.Stream, torch.Stream]:
    """Join; return two tensors of ones, and two streams."""
    device = joined(world)
    first, second = (torch.ones(900, device=device) for _ in range(2))
    torch.sim.synchronize()
    return first, second, torch.Stream(device), torch.Stream(device)


def _graph_of_two_streams(world: World) -> list[float]:
    """Capture operations on two streams; the group is left while the graph is replayed."""
    first, second, stream, side = _ready(world)
    with torch.sim.graph(stream) as graph:
        side.wait_stream(stream)
        dist.all_reduce(first)
        with side:
            dist.all_reduce(second)
        stream.wait_stream(side)
    with stream:
        sim.load().sleep(world.rank, stream.stream_id, 200_000 * world.rank)
        for _ in range(3):
            graph.replay()
        dist.destroy_process_group()
        return [*first.unique().tolist(), *second.unique().tolist()]


def test_a_graph_of_two_streams_and_leaving_behind_it() -> None:
    assert run_ranks(2, _graph_of_two_streams, environment=SMALL) == [[8.0, 8.0]] * 2


def _two_captures(world: World) -> list[float]:
    """Capture twice: the second begins on the same stream, with its operation on another."""
    first, second, stream, side = _ready(world)
    with torch.sim.graph(stream) as one:
        dist.all_reduce(first)
    with torch.sim.graph(stream) as two:
        side.wait_stream(stream)
        with side:
            dist.all_reduce(second)
        stream.wait_stream(side)
    with stream:
        for graph in (one, two, one):
            graph.replay()
        return [*first.unique().tolist(), *second.unique().tolist()]


def test_one_capture_knows_nothing_of_another() -> None:
    assert run_ranks(2, _two_captures, environment=SMALL) == [[4.0, 2.0]] * 2


def _waited_elsewhere(world: World, by_future: bool) -> list[float]:
    """Order one captured stream after the other by a work's wait() only."""
    data, twice, stream, side = _ready(world)
    with torch.sim.graph(stream) as graph:
        side.wait_stream(stream)
        with side:
            work: Any = dist.all_reduce(data, async_op=True)
        assert work.is_completed()
        if by_future:
            work.get_future().wait()
        else:
            work.wait()
        twice.copy_(data).mul_(2)
    with stream:
        for _ in range(3):
            graph.replay()
        return [*data.unique().tolist(), *twice.unique().tolist()]


@pytest.mark.parametrize("by_future", [False, True], ids=["wait", "future"])
def test_who_waits_on_another_stream_of_the_capture(by_future: bool) -> None:
    assert run_ranks(2, _waited_elsewhere, by_future, environment=SMALL) == [[8.0, 16.0]] * 2


def _captured_apart(world: World) -> list[list[float]]:
    """Capture in different orders on the ranks, before and after there is a pool; replay alike."""
    data, other, stream, _ = _ready(world)
    tensors = [data[:700], other, data[800:]]
    graphs: dict[int, Any] = {}

    def capture(which: int) -> None:
        with torch.sim.graph(stream) as graphs[which]:
            dist.all_reduce(tensors[which])

    with stream:
        if world.rank == 0:
            capture(0)
            capture(1)
        in_place = fastcomm.empty(5000, device=data.device).fill_(1.0)
        assert fastcomm.is_shared(in_place)
        if world.rank == 1:
            tensors[0] = fastcomm.empty(700, device=data.device)
            capture(2)  # which nobody replays
            capture(1)
            capture(0)
        for turn in range(3):
            for which in (1, 0):
                tensors[which].fill_(turn + world.rank)
                graphs[which].replay()
            dist.all_reduce(in_place)
        found = [tensor.unique().tolist() for tensor in (tensors[0], tensors[1], in_place)]
    torch.sim.synchronize()
    return found


def test_ranks_may_capture_apart_and_replay_alike() -> None:
    found = run_ranks(2, _captured_apart, environment=SMALL)
    assert found == [[[5.0], [5.0], [8.0]]] * 2


def _replay_at_once(world: World, count: int) -> list[torch.Tensor]:
    """Replay graphs on two streams: one after the other, and then at once on rank 0.

    Rank 1 replays only the first one then. Returns what the graphs sum up.
    """
    *ones, stream, side = _ready(world)
    tensors = [data[:count] for data in ones]
    graphs: list[Any] = []
    for data in tensors:
        with torch.sim.graph(stream) as graph:
            dist.all_reduce(data)
        graphs.append(graph)
    with stream:
        graphs[0].replay()
    side.wait_stream(stream)
    with side:
        graphs[1].replay()
    torch.sim.synchronize()
    assert [data.unique().tolist() for data in tensors] == [[2.0]] * 2
    both = dist.distributed_c10d._get_default_store()
    with stream:
        if world.rank != 0:  # whom rank 0 waits for, twice
            both.wait(["both are replayed"])
            sim.load().sleep(world.rank, stream.stream_id, 300_000)
        graphs[0].replay()
    if world.rank == 0:
        with side:
            graphs[1].replay()
        both.set("both are replayed", "")
    torch.sim.synchronize()
    sim.hazards()  # the two streams are in no order
    return tensors


def _errors(world: World, count: int) -> list[Caught]:
    return [catch(dist.all_reduce, data) for data in _replay_at_once(world, count)]


@pytest.mark.parametrize("count", [100, 900], ids=["one launch", "several launches"])
def test_two_replays_at_once_are_an_error(count: int) -> None:
    for rank, caught in enumerate(run_ranks(2, _errors, count, environment=SMALL)):
        for error in caught:
            assert "FastcommError" in error.bases, error
            assert "replayed at once on rank 0" in error.text, (rank, error)


def _wrong_sums(world: World) -> list[float]:
    found = [value for data in _replay_at_once(world, 100) for value in data.unique().tolist()]
    dist.all_reduce(torch.ones(1, device=f"sim:{world.rank}"))  # nothing has failed
    return found


def test_two_replays_at_once_without_the_guard_are_wrong_sums_without_an_error() -> None:
    """Both graphs of rank 0 meet the one that rank 1 replays, once: with a closing meeting, the
    second would wait for rank 1 in vain.
    """
    environment = {**SMALL, "FC_CONTROL": "no_guard"}
    sums = run_ranks(2, _wrong_sums, environment=environment, group_timeout=5)
    assert sums == [[4.0, 4.0], [4.0, 2.0]]

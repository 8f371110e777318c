"""Tensors on devices of a group over two hosts: a backend made for them, as on one host."""

from __future__ import annotations

import functools
import logging
import re
from datetime import timedelta
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support import ranks
from support.caught import Caught, catch
from support.namespaces import Host
from support.patience import SOON
from support.ranks import World
from support.stores import join_over

import fastcomm
from fastcomm._distributed import device_engines
from fastcomm._distributed.device_engines import Factory

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("simulated")]  # network namespaces

run_ranks = functools.partial(ranks.run_ranks, backend="cpu:fastcomm,sim:fastcomm")
_made: list[Any] = []
_said: list[str] = []


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    host = rank * 2 // size
    inner = timedelta(seconds=3600)
    _made.append(sim.SimBackend(store, rank, size, inner, machine=f"host {host}"))
    return _made[-1]


def _one_cannot_make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    if rank == 1:
        raise RuntimeError("no way out of this host")
    return sim.SimBackend(dist.HashStore(), 0, 1, timeout)  # waits for nobody, as NCCL's


def _init(world: World, hosts: list[Host], port: int, make: Any = _make) -> torch.device:
    """Form the group of a device for each rank; those of each host are numbered from 0."""
    host = world.rank * 2 // world.size
    hosts[host].enter()
    sim.load()
    mine = torch.device("sim", world.rank - host * world.size // 2)
    device_engines.register("sim", Factory("simccl", make, lambda device: f"{host}, {device}"))
    handler = logging.Handler()
    handler.emit = lambda record: _said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fastcomm").addHandler(handler)
    torch.sim.set_device(mine)
    store = dist.TCPStore(hosts[0].address, port, world.size, world.rank == 0)
    join_over(store, world)
    return mine


def _operations(world: World, where: torch.device) -> None:
    """Run what Gloo has, too, with numbers that any order sums exactly."""
    rank, size = world.rank, world.size
    x = torch.full((1, 2), rank + 1.0, device=where)
    each = [[peer + 1.0] * 2 for peer in range(size)]
    total = [[sum(range(size + 1))] * 2]
    summed = x.clone()
    dist.all_reduce(summed)
    assert summed.tolist() == total
    summed = x.clone()
    dist.reduce(summed, 0)
    assert rank != 0 or summed.tolist() == total
    whole = torch.empty(size, 2, device=where)
    dist.all_gather_into_tensor(whole, x)
    assert whole.tolist() == each
    part = torch.empty(1, 2, device=where)
    dist.reduce_scatter_tensor(part, whole)
    assert part.tolist() == [[size * (rank + 1.0)] * 2]
    parts = [torch.empty(1, 2, device=where) for _ in range(size)]
    dist.all_gather(parts, x)
    assert torch.cat(parts).tolist() == each
    dist.gather(x, parts if rank == 1 else None, 1)
    dist.scatter(part, parts if rank == 1 else None, 1)
    assert part.tolist() == x.tolist()
    dist.broadcast(part, size - 1)
    assert part.tolist() == each[-1:]
    dist.all_to_all_single(exchanged := torch.empty_like(whole), whole)
    assert exchanged.tolist() == x.tolist() * size
    dist.all_to_all_single(exchanged, whole, [1] * size, [1] * size)
    if rank == 0:
        dist.send(x, size - 1)
    elif rank == size - 1:
        dist.recv(part, 0)
        assert part.tolist() == each[:1]


def _each(world: World, hosts: list[Host], port: int) -> tuple[dict[str, int], list[str]]:
    device = _init(world, hosts, port)
    x = torch.ones(3, device=device)
    undecided = fastcomm.explain("all_reduce", x)
    composed = world.size == 4  # two ranks on each host
    assert undecided.algorithm == ("composed" if composed else "gloo"), undecided
    assert "unless the first collective finds that simccl" in undecided.reason
    for where in (device, torch.device("cpu")):
        _operations(world, where)
    decided = fastcomm.explain("all_reduce", x)
    assert (decided.native, decided.algorithm) == (False, "simccl")
    assert "the ranks do not all share memory" in decided.reason
    on_host = fastcomm.explain("all_reduce", torch.ones(3))
    if composed:
        assert on_host.algorithm == "composed"
    else:
        assert on_host.algorithm == "gloo" and "shares no memory with" in on_host.reason
    got, peer = torch.empty(3, device=device), world.size - 1 - world.rank
    x.fill_(world.rank)
    messages = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, got, peer)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    assert got.tolist() == [float(peer)] * 3
    dist.barrier()
    (backend,) = _made
    calls: dict[str, int] = backend.calls()
    dist.destroy_process_group()
    return calls, _said


@pytest.mark.parametrize("size", [2, 4])
def test_operations_go_to_the_backend(hosts: list[Host], size: int) -> None:
    found = run_ranks(size, _each, hosts, 29700 + size)
    for calls, _ in found:
        assert set(calls) >= {"allreduce", "broadcast", "send", "recv", "alltoall_base", "gather"}
    (warning,) = found[0][1]
    assert "on Gloo" in warning and "tensors on sim go to simccl" in warning
    assert not any(said for _, said in found[1:])


def _one_cannot(world: World, hosts: list[Host], port: int) -> list[Caught]:
    device = _init(world, hosts, port, _one_cannot_make)
    x = torch.ones(3, device=device)

    def reduce_until_told() -> None:  # the other one's backend waits for nobody
        while True:
            dist.all_reduce(x)

    return [catch(reduce_until_told), catch(dist.all_reduce, torch.ones(3))]


def test_a_rank_that_cannot_make_its_backend_fails_the_group(hosts: list[Host]) -> None:
    told = run_ranks(2, _one_cannot, hosts, 29710)
    kinds = [[one.kind for one in caught] for caught in told]
    assert kinds == [["GroupPoisonedError"] * 2, ["CommunicationSystemError"] * 2], told
    assert "rank 1 (pid" in told[0][0].text and told[0][0].peer == 1
    for caught in told:
        assert "the backend for tensors on sim could not be made" in caught[0].text
        assert "no way out of this host" in caught[0].text


def _one_cannot_send(world: World, hosts: list[Host], port: int) -> Caught:
    x = torch.ones(3, device=_init(world, hosts, port, _one_cannot_make))
    # The simulation's backend forms at once, so the other one waits elsewhere.
    return catch(dist.all_reduce, x.cpu()) if world.rank == 0 else catch(dist.send, x, 0)


def test_a_rank_that_cannot_make_its_backend_for_a_message_fails_the_group(
    hosts: list[Host],
) -> None:
    told = run_ranks(2, _one_cannot_send, hosts, 29711)
    assert [one.kind for one in told] == ["GroupPoisonedError", "CommunicationSystemError"], told
    for caught in told:
        assert "no way out of this host" in caught.text
        assert caught.seconds < SOON


def _late(world: World, hosts: list[Host], port: int) -> list[Caught]:
    x = torch.ones(3, device=_init(world, hosts, port))
    dist.all_reduce(x)
    dist.group.WORLD._get_backend(x.device).set_timeout(timedelta(seconds=1.5))
    if world.rank == 1:
        world.hear("given up")
        return []
    caught = [catch(dist.all_reduce, x), catch(dist.all_reduce, torch.ones(3))]
    world.tell("given up")
    return caught


def test_an_operation_that_does_not_end_fails_both(hosts: list[Host]) -> None:
    caught, _ = run_ranks(2, _late, hosts, 29720)
    assert [one.kind for one in caught] == ["CollectiveTimeoutError"] * 2, caught
    # Noticed by our watch or by the backend's own.
    assert re.search("simccl: (Timed out waiting 1500ms|.*Watchdog caught)", caught[0].text)

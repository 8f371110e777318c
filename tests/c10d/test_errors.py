"""One family of errors: the same class and attributes whichever way an error comes out."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.ranks import World, run_outcomes, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastcomm
from fastcomm import errors
from fastcomm.ddp_comm_hooks import FusedState, fused_hook

WAYS = [
    "sync",
    "wait",
    "future",
    "future value",
    "backward",
    "backward with a hook",
    "backward, fused",
]


def _hook(state, bucket):  # type: ignore[no-untyped-def]  # torch would refuse annotations that are strings
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _backward(world: World, way: str) -> Caught:
    model = nn.Sequential(nn.Linear(8, 300), nn.Linear(300, 300), nn.Linear(300, 2))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    if way == "backward with a hook":
        ddp.register_comm_hook(None, _hook)
    if way == "backward, fused":
        ddp.register_comm_hook(FusedState(model.parameters()), fused_hook)
    ddp(torch.ones(2, 8)).sum().backward()
    loss = ddp(torch.ones(2, 8)).sum()
    if world.rank == 1:
        model[1].weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
    return catch(loss.backward)


def _die_in_front_of(world: World, way: str) -> Caught:
    world.init()
    dist.barrier()
    if way.startswith("backward"):
        return _backward(world, way)
    if world.rank == 1:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(4)
    if way == "sync":
        return catch(dist.all_reduce, tensor)
    work = dist.all_reduce(tensor, async_op=True)
    if way == "wait":
        return catch(work.wait)
    future = work.get_future()
    if way == "future":
        return catch(future.wait)
    while not future.done():
        time.sleep(0.01)
    return catch(future.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_peer_is_the_same_error_every_way(way: str) -> None:
    survivor = run_outcomes(2, _die_in_front_of, way)[0]
    assert survivor.error is None, survivor.error
    caught: Caught = survivor.value
    assert caught.kind == "PeerLostError"
    assert (caught.rank, caught.world_size, caught.peer) == (0, 2, 1)
    assert caught.operation == ("fused_all_reduce" if way.endswith("fused") else "all_reduce")
    assert caught.sequence is not None
    assert caught.sequence >= 1
    assert {"FastcommError", "DistBackendError", "RuntimeError"} <= set(caught.bases)


@on_ranks(3)
def test_a_mismatch_is_the_same_error_every_way(world: World) -> None:
    told = []
    for way in ("sync", "wait", "future"):
        world.init(name=way)
        dist.barrier()
        tensor = torch.ones(4 + world.rank)
        if way == "sync":
            told.append(catch(dist.all_reduce, tensor))
        else:
            work = dist.all_reduce(tensor, async_op=True)
            told.append(catch(work.wait if way == "wait" else work.get_future().wait))
            assert not work.is_success()
        told.append(catch(dist.barrier))
        dist.destroy_process_group()
    for caught in told:
        assert caught.kind == "CollectiveMismatchError", caught
        assert (caught.rank, caught.world_size) == (world.rank, 3)
        assert (caught.operation, caught.sequence) == ("all_reduce", 1)


# What most ranks call, and the odd one; what the message shows of each.
_UNLIKE: dict[str, tuple[Any, Any, str, str]] = {
    "operation": (dist.all_reduce, lambda t: dist.broadcast(t, 0), "all_reduce(", "broadcast("),
    "size": (dist.all_reduce, lambda t: dist.all_reduce(t[1:]), "8 elements", "7 elements"),
    "dtype": (dist.all_reduce, lambda t: dist.all_reduce(t.int()), "float32", "int32"),
    "root": (lambda t: dist.broadcast(t, 0), lambda t: dist.broadcast(t, 1), "root 0", "root 1"),
    "reduction": (
        dist.all_reduce,
        lambda t: dist.all_reduce(t, op=dist.ReduceOp.MAX),
        "all_reduce(sum",
        "all_reduce(max",
    ),
}


def _culprits(world: World) -> dict[tuple[str, int, tuple[int, ...]], Caught]:
    """Play each disagreement in groups of 3 to 5 ranks, with one odd rank or two."""
    told: dict[tuple[str, int, tuple[int, ...]], Caught] = {}
    for number, (kind, (usual, unlike, _, _)) in enumerate(_UNLIKE.items()):
        for size in (3, 4, 5):
            for odd in ((number % size,), (1, 3)):
                if world.rank >= size or odd[-1] >= size:
                    continue
                replace(world, size=size).init(name=f"{kind}{size}{odd}")
                call = unlike if world.rank in odd else usual
                told[kind, size, odd] = catch(call, torch.ones(8))
                dist.destroy_process_group()
    return told


def test_every_rank_names_the_odd_one_among_several() -> None:
    told_by = run_ranks(5, _culprits)
    for (kind, size, odd), first in told_by[0].items():
        _, _, usual, unlike = _UNLIKE[kind]
        others = [rank for rank in range(size) if rank not in odd]
        tie = len(others) == len(odd)
        for rank in range(size):
            caught = told_by[rank][kind, size, odd]
            assert caught.kind == "CollectiveMismatchError", caught
            assert caught.peer == (None if tie else odd[0]), (kind, size, odd, caught)
            said, _, shown = caught.text.partition("] ")[2].partition(": ")
            named = "rank 1" if odd == (1,) else "ranks 1, 3" if len(odd) == 2 else f"rank {odd[0]}"
            assert (f"{named} is the odd" in said or f"{named} are the odd" in said) != tie, said
            assert f"{named} called " in shown, shown
            of_the_odd = shown[shown.index(f"{named} called ") :].partition("; ")[0]
            of_the_others = shown.replace(of_the_odd, "")
            assert unlike in of_the_odd, (kind, shown)
            assert usual in of_the_others and unlike not in of_the_others, (kind, shown)
            assert caught.text.partition("] ")[2] == first.text.partition("] ")[2]


def test_the_classes_and_what_they_also_are() -> None:
    for kind in errors.BY_CODE:
        assert issubclass(kind, fastcomm.FastcommError)
        assert issubclass(kind, dist.DistBackendError)
        assert issubclass(kind, RuntimeError)
    assert issubclass(errors.CollectiveTimeoutError, TimeoutError)
    assert issubclass(errors.CollectiveArgumentError, ValueError)
    assert issubclass(errors.UnsupportedError, NotImplementedError)
    assert issubclass(errors.CommunicationSystemError, OSError)


def test_the_attributes_come_from_the_message() -> None:
    error: Any = errors.PeerLostError("[rank 3 of 8, peer 5, all_gather, sequence 17] it died")
    assert (error.rank, error.world_size, error.peer) == (3, 8, 5)
    assert (error.operation, error.sequence) == ("all_gather", 17)
    assert str(error) == "[rank 3 of 8, peer 5, all_gather, sequence 17] it died"
    plain: Any = errors.FastcommError("no operation")
    assert (plain.rank, plain.peer, plain.sequence) == (None, None, None)

"""Operations that Gloo does inside a native group: right results, and fastcomm's errors."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import disagreement
from support.caught import Caught, catch
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Tensors = list[torch.Tensor]
Issued = tuple[Any, Tensors, Tensors]  # the work or None, what it writes, what must be there


def _ramp(rank: int, count: int = 4) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) + 10 * rank


def _all_reduce_max(rank: int, size: int, async_op: bool) -> Issued:
    x = _ramp(rank)
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=async_op)
    return work, [x], [_ramp(size - 1)]


def _reduce(rank: int, size: int, async_op: bool) -> Issued:
    x = _ramp(rank)
    work = dist.reduce(x, dst=size - 1, async_op=async_op)
    wanted = [sum((_ramp(peer) for peer in range(size)), torch.zeros(4))]
    return work, [x] if rank == size - 1 else [], wanted if rank == size - 1 else []


def _all_gather_into_tensor(rank: int, size: int, async_op: bool) -> Issued:
    out = torch.zeros(4 * size)
    work = dist.all_gather_into_tensor(out, _ramp(rank), async_op=async_op)
    return work, [out], [torch.cat([_ramp(peer) for peer in range(size)])]


def _gather(rank: int, size: int, async_op: bool) -> Issued:
    out = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    work = dist.gather(_ramp(rank), out, dst=0, async_op=async_op)
    return work, out or [], [_ramp(peer) for peer in range(size)] if rank == 0 else []


def _scatter(rank: int, size: int, async_op: bool) -> Issued:
    out = torch.zeros(4)
    parts = [_ramp(peer) for peer in range(size)] if rank == 0 else None
    return dist.scatter(out, parts, src=0, async_op=async_op), [out], [_ramp(rank)]


def _reduce_scatter(rank: int, size: int, async_op: bool) -> Issued:
    out = torch.zeros(4)
    work = dist.reduce_scatter(out, [_ramp(rank) + peer for peer in range(size)], async_op=async_op)
    return work, [out], [sum((_ramp(peer) + rank for peer in range(size)), torch.zeros(4))]


def _reduce_scatter_tensor(rank: int, size: int, async_op: bool) -> Issued:
    out = torch.zeros(2)
    work = dist.reduce_scatter_tensor(out, _ramp(rank, 2 * size), async_op=async_op)
    total = sum((_ramp(peer, 2 * size) for peer in range(size)), torch.zeros(2 * size))
    return work, [out], [total[2 * rank : 2 * rank + 2]]


def _all_to_all_single(rank: int, size: int, async_op: bool) -> Issued:
    """Rank r sends r + 1 elements to everybody."""
    out = torch.zeros(size * (size + 1) // 2)
    work = dist.all_to_all_single(
        out,
        torch.full((size * (rank + 1),), float(rank)),
        [peer + 1 for peer in range(size)],
        [rank + 1] * size,
        async_op=async_op,
    )
    return work, [out], [torch.cat([torch.full((p + 1,), float(p)) for p in range(size)])]


OPERATIONS: list[Callable[[int, int, bool], Issued]] = [
    _all_reduce_max,
    _reduce,
    _all_gather_into_tensor,
    _gather,
    _scatter,
    _reduce_scatter,
    _reduce_scatter_tensor,
    _all_to_all_single,
]


def _run_them(world: World) -> None:
    world.init()
    for operation in OPERATIONS:
        work, got, wanted = operation(world.rank, world.size, False)
        assert work is None
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)), operation
    # All at once, native ones between them, the last awaited first.
    ones = [torch.ones(3) for _ in OPERATIONS]
    issued = []
    for operation, x in zip(OPERATIONS, ones, strict=True):
        issued.append(operation(world.rank, world.size, True))
        issued.append((dist.all_reduce(x, async_op=True), [x], [torch.full((3,), world.size)]))
    for work, got, wanted in reversed(issued):
        work.wait()
        assert work.is_completed() and work.is_success()
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    # Through the future alone; nobody holds the work.
    for operation in OPERATIONS:
        work, got, wanted = operation(world.rank, world.size, True)
        future = work.get_future()
        del work
        future.wait()
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)), operation
    dist.all_gather_object([None] * world.size, {"rank": world.rank})
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_results(size: int) -> None:
    run_ranks(size, _run_them)


DISAGREEMENTS: disagreement.Disagreements = {
    "one goes to Gloo": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.SUM),
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX),
        "all_reduce(sum",
        "all_reduce(max",
    ),
    "one goes to Gloo, asynchronous": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait(),
        lambda x: dist.broadcast(x, src=1, async_op=True).wait(),
        "all_reduce(max",
        "broadcast",
    ),
    "reduction": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MIN),
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX),
        "min",
        "max",
    ),
    "complex dtype": (
        lambda x: dist.reduce(x.view(torch.complex64), dst=1),
        lambda x: dist.reduce(x.view(torch.complex128), dst=1),
        "complex64",
        "complex128",
    ),
    "root": (
        lambda x: dist.reduce(x, dst=0),
        lambda x: dist.reduce(x, dst=1),
        "root 0",
        "root 1",
    ),
    "size": (
        lambda x: dist.all_gather_into_tensor(torch.empty(4 * dist.get_world_size()), x[:4]),
        lambda x: dist.all_gather_into_tensor(torch.empty(6 * dist.get_world_size()), x[:6]),
        f"[4, {4 * 3}]",
        f"[6, {6 * 3}]",
    ),
    "scatter": (
        lambda x: dist.scatter(x[:4], list(x.view(-1, 4)[: dist.get_world_size()].clone()), src=0),
        lambda x: dist.scatter(x[:6], src=0),
        "4 elements",
        "6 elements",
    ),
    "reduce_scatter dtype": (
        lambda x: dist.reduce_scatter_tensor(x[:4], x[: 4 * dist.get_world_size()].clone()),
        lambda x: dist.reduce_scatter_tensor(
            x[:4].view(torch.int32), x[: 4 * dist.get_world_size()].view(torch.int32).clone()
        ),
        "float32",
        "int32",
    ),
    "split sizes": (
        lambda x: dist.all_to_all_single(x[:6], x[6:12].clone(), [2, 2, 2], [2, 2, 2]),
        lambda x: dist.all_to_all_single(x[:6], x[6:12].clone(), [1, 3, 2], [2, 2, 2]),
        "sends [2, 2, 2], expects [2, 2, 2]",
        "sends [2, 2, 2], expects [1, 3, 2]",
    ),
    "equal parts of other sizes": (
        lambda x: dist.all_to_all_single(x[:3], x[6:9].clone()),
        lambda x: dist.all_to_all_single(x[:6], x[6:12].clone()),
        "sends [1, 1, 1], expects [1, 1, 1]",
        "sends [2, 2, 2], expects [2, 2, 2]",
    ),
    "shape list": (
        lambda x: dist.all_reduce_coalesced([x[:4], x[4:10]]),
        lambda x: dist.all_reduce_coalesced([x[:6], x[6:10]]),
        "in tensors of [4, 6]",
        "in tensors of [6, 4]",
    ),
    "operation": (
        lambda x: dist.gather(x, [torch.empty(48) for _ in range(dist.get_world_size())], dst=0),
        lambda x: dist.reduce(x, dst=0),
        "gather",
        "reduce",
    ),
    "a call more": (
        lambda x: (dist.reduce(x.clone(), dst=0), dist.reduce(x, dst=0)),
        lambda x: (dist.reduce(x.clone(), dst=0), dist.barrier()),
        "reduce(",
        "barrier()",
    ),
}


def _disagree(world: World) -> disagreement.Told:
    return disagreement.play(world, DISAGREEMENTS, 48)


def test_ranks_that_disagree_all_hear_it_and_keep_their_memory() -> None:
    disagreement.check(run_ranks(3, _disagree), DISAGREEMENTS)


def _die_soon(delay: float) -> None:
    threading.Timer(delay, os.kill, [os.getpid(), signal.SIGKILL]).start()


def _gather_for_ever(elements: int, async_op: bool) -> None:
    x, out = torch.zeros(elements), torch.zeros(elements * dist.get_world_size())
    while True:
        works = [dist.all_gather_into_tensor(out, x, async_op=async_op) for _ in range(3)]
        for work in works:
            if work is not None:
                work.wait()


def _lose_one(world: World, elements: int, async_op: bool) -> tuple[Caught, Caught, float]:
    world.init()
    dist.barrier()
    if world.rank == 1:
        _die_soon(0.3)
    died = time.monotonic() + 0.3
    first = catch(_gather_for_ever, elements, async_op)
    return first, catch(dist.reduce, torch.ones(3), 0), first.at - died


@pytest.mark.parametrize("async_op", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("elements", [16, 1 << 20], ids=["small", "large"])
def test_a_rank_dies_while_gloo_works(elements: int, async_op: bool) -> None:
    outcomes = run_outcomes(3, _lose_one, elements, async_op, timeout=40)
    assert outcomes[1].exitcode == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        first, again, delay = outcome.value
        assert (first.kind, first.peer) == ("PeerLostError", 1), first
        assert first.operation == "all_gather_into_tensor"
        assert delay < 1.5, delay
        assert (again.kind, again.peer) == ("PeerLostError", 1), again


def _one_is_late(world: World) -> Caught | None:
    world.init()
    dist.all_reduce(torch.ones(5), op=dist.ReduceOp.MAX)
    if world.rank == 1:
        time.sleep(1.5)
        return None
    return catch(dist.reduce, torch.ones(3), 0)


def test_a_timeout_names_the_late_rank_and_what_it_did_last() -> None:
    caught = run_ranks(2, _one_is_late, group_timeout=0.5)[0]
    assert caught.kind == "CollectiveTimeoutError"
    assert (caught.peer, caught.operation, caught.sequence) == (1, "reduce", 1)
    assert "has not called it; the last it called was all_reduce(max, float32, 5" in caught.text
    assert 0.5 <= caught.seconds < 0.6


def _interrupt(world: World, how: str) -> Caught:
    world.init()
    dist.barrier()
    if how == "late peer" and world.rank == 1:
        time.sleep(0.8)
    if world.rank == 0:
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    if how == "late peer":
        caught = catch(dist.reduce, torch.ones(4), 0)
    else:
        caught = catch(_gather_for_ever, 1 << 20, False)
    start = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - start < 5
    return caught


@pytest.mark.parametrize("how", ["late peer", "in a loop"])
def test_ctrl_c(how: str) -> None:
    caught, other = run_ranks(2, _interrupt, how)
    assert caught.kind == "KeyboardInterrupt"
    assert 0.25 < caught.seconds < 0.6
    assert other.peer == 0
    # Between two calls Python raises it before the group hears of it; then the group is left.
    assert other.kind in ("GroupPoisonedError", *(["PeerLeftError"] if how == "in a loop" else []))


def _stop_in_the_middle(world: World) -> tuple[Caught, float] | None:
    """Rank 1 meets, and is stopped before Gloo has its data; rank 0 is interrupted."""
    world.init()
    dist.barrier()
    if world.rank == 1:
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGSTOP]).start()
        _gather_for_ever(1 << 24, False)
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    caught = catch(_gather_for_ever, 1 << 24, False)
    start = time.monotonic()
    dist.destroy_process_group()
    return caught, time.monotonic() - start


def test_ctrl_c_while_a_peer_is_stopped_in_gloo() -> None:
    outcome = run_outcomes(2, _stop_in_the_middle, timeout=12)[0]
    assert outcome.error is None, outcome.error
    caught, to_destroy = outcome.value
    assert caught.kind == "KeyboardInterrupt"
    assert caught.seconds < 2 and to_destroy < 2
    assert outcome.exitcode == 0


def _refuse(world: World) -> list[Caught]:
    """Root lists that do not fit are refused before anything is sent; the group stays usable."""
    world.init()
    x = torch.ones(3)
    lists = [[torch.ones(3)], [torch.ones(3), torch.ones(4)]]
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    caught = []
    if world.rank == 0:
        caught = [catch(backend.gather, [entry], [x], dist.GatherOptions()) for entry in lists]
        caught += [catch(dist.all_to_all_single, x, x.clone(), [1, 1], [2, 1])]
    dist.reduce(x, dst=0)
    assert world.rank != 0 or x.tolist() == [2.0] * 3
    return caught


def test_what_one_rank_gives_alone_is_checked_before_the_ranks_meet() -> None:
    caught = run_ranks(2, _refuse)[0]
    assert [error.kind for error in caught[:2]] == ["CollectiveArgumentError"] * 2
    assert len(caught) == 3

"""Ranks that die, are late, stopped or interrupted around an operation that Gloo does."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.ranks import World, run_outcomes, run_ranks

pytestmark = pytest.mark.serial  # short times are compared


def _die_soon(delay: float) -> None:
    threading.Timer(delay, os.kill, [os.getpid(), signal.SIGKILL]).start()


def _exchange_for_ever(elements: int, async_op: bool) -> None:
    x = torch.zeros(elements * dist.get_world_size())
    out = torch.zeros_like(x)
    while True:
        works = [dist.all_to_all_single(out, x, async_op=async_op) for _ in range(3)]
        for work in works:
            if work is not None:
                work.wait()


def _lose_one(world: World, elements: int, async_op: bool) -> tuple[Caught, Caught, float]:
    world.init()
    dist.barrier()
    if world.rank == 1:
        _die_soon(0.3)
    died = time.monotonic() + 0.3
    first = catch(_exchange_for_ever, elements, async_op)
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
        assert first.operation == "all_to_all_single"
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
        caught = catch(_exchange_for_ever, 1 << 20, False)
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
        _exchange_for_ever(1 << 24, False)
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    caught = catch(_exchange_for_ever, 1 << 24, False)
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

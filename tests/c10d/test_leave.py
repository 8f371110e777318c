"""A rank leaves the group in good order, is late, or forks: what the others, and it, are told."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch, interrupted_in
from support.patience import ENDS, SOON, until
from support.ranks import World, run_ranks

pytestmark = pytest.mark.serial  # short times are compared

LARGE = 1 << 20


def _leave_early(world: World) -> Caught | None:
    world.init()
    tensors = [torch.full((LARGE,), float(world.rank + i)) for i in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if world.rank == 1:
        for work in works:
            work.wait()
        dist.destroy_process_group()
        return None
    time.sleep(1)
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert torch.equal(tensor, torch.full((LARGE,), float(sum(range(world.size)))) + 3 * i)
    return catch(dist.all_reduce, torch.zeros(4))


def test_what_was_begun_ends_and_later_operations_say_who_left() -> None:
    told = run_ranks(3, _leave_early)
    for rank in (0, 2):
        assert told[rank].kind == "PeerLeftError"
        assert (told[rank].peer, told[rank].sequence) == (1, 3)
        assert told[rank].seconds < SOON


def _leave_because(world: World, error: BaseException, rooted: bool) -> Caught | None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        try:
            raise error
        except BaseException:
            dist.destroy_process_group()
        return None
    return catch(
        dist.reduce if rooted else dist.all_reduce, torch.ones(4), *([0] if rooted else [])
    )


@pytest.mark.parametrize("rooted", [False, True])
def test_others_are_told_the_exception_that_a_rank_leaves_for(rooted: bool) -> None:
    told = run_ranks(2, _leave_because, MemoryError("no room\nat all"), rooted)[0]
    assert told.kind == "PeerLeftError"
    assert "destroyed its process group because of MemoryError: no room after 1 op" in told.text
    assert told.text.endswith("Look at its own output")


@pytest.mark.parametrize("padding", ["", "x"])
def test_a_long_text_is_cut_between_characters(padding: str) -> None:
    told = run_ranks(2, _leave_because, ValueError(padding + 400 * "\u00fc"), False)[0]
    assert told.kind == "PeerLeftError"
    assert f"because of ValueError: {padding}\u00fc\u00fc" in told.text


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(None)])
def test_an_exit_in_order_is_no_failure(error: SystemExit) -> None:
    told = run_ranks(2, _leave_because, error, False)[0]
    assert "destroyed its process group after 1 operation;" in told.text
    assert told.text.endswith("never called there")


def _leave_while_others_wait(world: World) -> float | Caught:
    world.init()
    dist.barrier()
    if world.rank == 1:
        time.sleep(0.3)
        left = time.monotonic()
        dist.destroy_process_group()
        return left
    return catch(dist.broadcast, torch.zeros(LARGE), src=1)


def test_a_waiting_rank_hears_that_a_peer_leaves_at_once() -> None:
    waiting, left = run_ranks(2, _leave_while_others_wait)
    assert waiting.kind == "PeerLeftError"
    assert waiting.at - left < SOON


def _late(world: World, asynchronous: bool) -> list[Caught]:
    world.init()
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=1.5))
    if world.rank == 1:
        for rank in (0, 2):
            world.hear(f"rank {rank} has given up")
        # Everything needed for a small operation is there; a later one cannot work.
        works = [dist.all_reduce(torch.zeros(4), async_op=True) for _ in range(2)]
        return [catch(works[1].wait)]
    if not asynchronous:
        first = catch(dist.all_reduce, torch.zeros(4))
    else:
        first = catch(dist.all_reduce(torch.zeros(4), async_op=True).wait)
    world.tell(f"rank {world.rank} has given up")
    return [first, catch(dist.barrier)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_timeout_is_exact_and_names_who_is_late(asynchronous: bool) -> None:
    # Nothing is told too early; and what the machine adds, it adds to some runs and not to all.
    late = []
    for _ in range(5):
        late.append(_check_late(run_ranks(3, _late, asynchronous)))
        if late[-1] <= 0.15:
            break
    assert min(late) <= 0.15, late


def _check_late(told: list[list[Caught]]) -> float:
    """Check what three ranks were told; return how many seconds after the timeout."""
    for rank in (0, 2):
        first, again = told[rank]
        assert first.kind == "CollectiveTimeoutError", first
        assert "TimeoutError" in first.bases
        assert first.peer == 1
        assert "rank 1 (pid" in first.text
        assert again.kind == "CollectiveTimeoutError"
        assert again.seconds < SOON
    (learned,) = told[1]
    assert (learned.kind, learned.peer) == ("CollectiveTimeoutError", 1)  # what it did itself
    assert learned.seconds < SOON
    # One tells the other, which may have called later.
    seconds = max(told[0][0].seconds, told[2][0].seconds)
    assert seconds >= 1.5
    return seconds - 1.5


def _wake(world: World, pid: int, given_up: bool) -> None:
    """Let a process go on a second after it has stopped, or when the others have given up."""
    stat = Path(f"/proc/{pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the rank stops")
    if given_up:
        world.hear("rank 0 gave up")
    else:
        time.sleep(1)
    os.kill(pid, signal.SIGCONT)


def _stopped(world: World, patience: float) -> Caught | list[float]:
    world.init()
    path = Path(world.directory, "pid")
    if world.rank == 1:
        path.write_text(str(os.getpid()))
    dist.barrier()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        Thread(target=_wake, args=[world, int(path.read_text()), patience < 1]).start()
        dist.group.WORLD.set_timeout(timedelta(seconds=patience))
    tensor = torch.full((4,), float(world.rank))
    if patience < 1:
        caught = catch(dist.all_reduce, tensor)  # on rank 1, too: its call comes after the timeout
        world.tell(f"rank {world.rank} gave up")
        return caught
    dist.all_reduce(tensor)
    return tensor.tolist()


def test_a_stopped_rank_is_late_and_not_dead() -> None:
    assert run_ranks(2, _stopped, 60.0) == [[1.0] * 4] * 2


def test_a_stopped_rank_runs_into_the_timeout() -> None:
    told, late = run_ranks(2, _stopped, 0.5)
    assert {(one.kind, one.peer) for one in (told, late)} == {("CollectiveTimeoutError", 1)}
    assert 0.5 <= told.seconds < SOON


def _short_wait(world: World) -> tuple[Caught | None, list[float]]:
    world.init()
    dist.barrier()
    tensor = torch.ones(LARGE)
    expired = None
    if world.rank == 1:
        world.hear("expired")
    work = dist.all_reduce(tensor, async_op=True)
    if world.rank == 0:
        expired = catch(work.wait, timedelta(milliseconds=200))
        assert not work.is_completed()
        world.tell("expired")
    work.wait()
    dist.all_reduce(tensor)
    return expired, sorted(set(tensor.tolist()))


def test_the_expiry_of_wait_harms_nothing() -> None:
    (expired, first), (_, second) = run_ranks(2, _short_wait)
    assert expired is not None
    assert expired.kind == "CollectiveTimeoutError"
    assert 0.2 <= expired.seconds < SOON
    assert first == second == [4.0]


def _interrupt(world: World, operation: str) -> Caught:
    world.init()
    dist.barrier()
    tensor = torch.ones(4)
    call: Any = dist.barrier if operation == "barrier" else lambda: dist.all_reduce(tensor)
    if world.rank == 1:
        world.hear("interrupted")
        return catch(call)  # although the peer had done its part
    if operation == "wait":
        call = dist.all_reduce(tensor, async_op=True).wait
    caught = catch(interrupted_in, call)
    world.tell("interrupted")
    return caught


@pytest.mark.parametrize("operation", ["all_reduce", "barrier", "wait"])
def test_ctrl_c_ends_a_blocked_call_at_once(operation: str) -> None:
    caught, other = run_ranks(2, _interrupt, operation)
    assert caught.kind == "KeyboardInterrupt"
    assert 0.25 < caught.seconds < SOON
    assert (other.kind, other.peer) == ("GroupPoisonedError", 0)
    assert "was interrupted" in other.text


def _use_in_a_child(how: str) -> None:
    """Run in a forked child; its exit status tells how it went: 0 is right."""
    if how == "return":
        return
    if how == "destroy":
        dist.destroy_process_group()
        return
    if how == "barrier":
        caught = catch(dist.barrier)
    elif how == "asynchronous":
        caught = catch(lambda: dist.all_reduce(torch.zeros(4), async_op=True).wait())
    else:
        caught = catch(dist.all_reduce, torch.zeros(4))
    assert caught.kind == "ForkedProcessError", caught


def _fork(world: World, how: str) -> tuple[int, float]:
    world.init()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()  # now the progress thread runs
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _use_in_a_child(how)
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + ENDS
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    return (ended[1] if ended != (0, 0) else -1), tensor[0].item()


@pytest.mark.parametrize("how", ["all_reduce", "asynchronous", "barrier", "destroy", "return"])
def test_a_forked_child_gets_an_error_and_its_parent_goes_on(how: str) -> None:
    assert run_ranks(2, _fork, how) == [(0, 16.0)] * 2

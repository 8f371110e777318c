"""A rank leaves the group in good order, or is late: what the others, and it, are told."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.patience import SOON, until
from support.ranks import World, run_ranks

pytestmark = pytest.mark.serial  # short times are compared

LARGE = 1 << 20


@on_ranks(3)
def test_what_was_begun_ends_and_later_operations_say_who_left(world: World) -> None:
    world.init()
    tensors = [torch.full((LARGE,), float(world.rank + i)) for i in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if world.rank == 1:
        for work in works:
            work.wait()
        return dist.destroy_process_group()
    time.sleep(1)
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert torch.equal(tensor, torch.full((LARGE,), float(sum(range(world.size)))) + 3 * i)
    told = catch(dist.all_reduce, torch.zeros(4))
    assert (told.kind, told.peer, told.sequence) == ("PeerLeftError", 1, 3)
    assert told.seconds < SOON


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
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("no room\nat all"), "because of MemoryError: no room after 1 op"),
        # A long text is cut between characters.
        (ValueError(400 * "ü"), "because of ValueError: üü"),
        (ValueError("x" + 400 * "ü"), "because of ValueError: xüü"),
        # An exit in order is no failure.
        *((SystemExit(status), "after 1 operation;") for status in (0, None)),
    ],
)
def test_others_are_told_the_exception_that_a_rank_leaves_for(
    error: BaseException, said: str, rooted: bool
) -> None:
    told = run_ranks(2, _leave_because, error, rooted)[0]
    assert told.kind == "PeerLeftError"
    assert f"destroyed its process group {said}" in told.text
    is_failure = not isinstance(error, SystemExit)
    assert told.text.endswith("Look at its own output" if is_failure else "never called there")


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

"""One rank dies: every survivor is told which, soon, and lives on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import fork_apart, why_no_pids
from support.patience import ENDS, SOON
from support.ranks import Outcome, World, run_outcomes
from torch.utils.data import DataLoader

import fastcomm
import fastcomm.distributed

pytestmark = pytest.mark.serial  # the time to an error is compared

SMALL, LARGE = 16, 1 << 20


def _die(world: World) -> None:
    """Leave pid and time behind, and end so that no handler can notice."""
    path = Path(world.directory, "death")
    path.with_suffix(".new").write_text(f"{os.getpid()} {time.monotonic()}")
    path.with_suffix(".new").rename(path)
    os.kill(os.getpid(), signal.SIGKILL)


def _reduce_for_ever(elements: int, empty: Callable[..., torch.Tensor] = torch.empty) -> None:
    tensor = empty(elements).zero_()
    while True:
        dist.all_reduce(tensor)


def _reduce_async_for_ever(elements: int, empty: Callable[..., torch.Tensor] = torch.empty) -> None:
    tensors = [empty(elements).zero_() for _ in range(4)]
    while True:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()


def _fork_a_holder(world: World) -> None:
    """Leave a child that holds every descriptor of this process."""
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    Path(world.directory, "holder").write_text(str(child))


def _prepared_for_ever(elements: int) -> None:
    call = fastcomm.prepare("all_reduce", torch.zeros(elements))
    while True:
        call()


def _operators_for_ever(elements: int) -> None:
    tensor = torch.zeros(elements)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step() -> None:
        for _ in range(8):
            fastcomm.distributed.all_reduce_(tensor)

    while True:
        step()


# In which the victim dies, and from which survivors come out.
LOOPS: dict[str, Callable[[], None]] = {
    "in a loop": lambda: _reduce_for_ever(LARGE),
    "in a loop, asynchronous": lambda: _reduce_async_for_ever(SMALL),
    "in a loop of prepared calls": lambda: _prepared_for_ever(SMALL),
    "in a loop of compiled operators": lambda: _operators_for_ever(SMALL),
    "in a loop, in place": lambda: _reduce_for_ever(LARGE, fastcomm.empty),
    "in a loop, in place, asynchronous": lambda: _reduce_async_for_ever(LARGE // 4, fastcomm.empty),
}
# What survivors call when the victim is dead, or dies.
CALLS: dict[str, Callable[[], object]] = {
    "between operations": lambda: dist.all_reduce(torch.zeros(SMALL)),
    "before a broadcast": lambda: dist.broadcast(torch.zeros(LARGE), src=0),
    "before a barrier": dist.barrier,
    "forked holder": lambda: dist.all_reduce(torch.zeros(SMALL)),
    "in a training loop with workers": lambda: _reduce_for_ever(SMALL),
}


def _victim(world: World, how: str) -> None:
    if how == "forked holder":
        _fork_a_holder(world)
    if how == "in a training loop with workers":
        loader = DataLoader(range(1000), num_workers=2, multiprocessing_context="fork")
        threading.Timer(0.2, _die, [world]).start()
        for _ in loader:
            dist.all_reduce(torch.zeros(SMALL))
    if how in LOOPS:
        threading.Timer(0.2, _die, [world]).start()
        LOOPS[how]()
    if how == "asynchronous, pending":
        dist.all_reduce(torch.zeros(LARGE), async_op=True)
    time.sleep(0.2)
    _die(world)


def _survivor(how: str) -> Caught:
    if how == "asynchronous, pending":
        works = [dist.all_reduce(torch.zeros(LARGE), async_op=True) for _ in range(3)]
        return [catch(work.wait) for work in works[1:]][-1]
    return catch({**LOOPS, **CALLS}[how])


def _kill_one(world: World, victim: int, how: str) -> dict[str, Any]:
    world.init()
    dist.barrier()
    if world.rank == victim:
        _victim(world, how)
    first = _survivor(how)
    again = [catch(dist.all_reduce, torch.zeros(SMALL)), catch(dist.barrier)]
    pid, died = Path(world.directory, "death").read_text().split()
    holder = Path(world.directory, "holder")

    dist.destroy_process_group()
    rest = World(world.rank - (world.rank > victim), world.size - 1, world.directory)
    rest.init(name="second")
    tensor = torch.full((LARGE,), float(rest.rank))
    dist.all_reduce(tensor)
    dist.barrier()
    if rest.rank == 0 and holder.exists():
        os.kill(int(holder.read_text()), signal.SIGKILL)
    return {
        "first": first,
        "again": again,
        "pid": int(pid),
        "delay": first.at - float(died),
        "sum": set(tensor.tolist()),
    }


@pytest.mark.parametrize("how", [*LOOPS, *CALLS, "asynchronous, pending"])
@pytest.mark.parametrize(("size", "victim"), [(2, 0), (4, 2)])
def test_survivors_learn_who_died_and_go_on(size: int, victim: int, how: str) -> None:
    outcomes = run_outcomes(size, _kill_one, victim, how)
    assert outcomes[victim].exitcode == -signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank != victim:
            _check_survivor(outcome, size, victim)


def _check_survivor(outcome: Outcome, size: int, victim: int) -> None:
    assert outcome.error is None, outcome.error
    assert outcome.exitcode == 0
    told = outcome.value
    first: Caught = told["first"]
    assert first.kind == "PeerLostError", first
    assert (first.rank, first.world_size, first.peer) == (outcome.rank, size, victim)
    assert str(told["pid"]) in first.text
    assert told["delay"] < SOON, f"told after {told['delay']:.2f} s"
    for later in told["again"]:
        assert (later.kind, later.peer) == ("PeerLostError", victim), later
        assert later.seconds < SOON
    assert told["sum"] == {float(sum(range(size - 1)))}


def _lose_one_apart(world: World, victim: int) -> Caught | None:
    """Give rank 1 process numbers of its own: the ranks do not know each other's."""

    def play() -> Caught:
        world.init()
        dist.all_reduce(torch.zeros(SMALL))
        if world.rank == victim:
            world.tell("ready")
        return catch(_reduce_for_ever, SMALL)

    def end(pid: int) -> None:
        world.hear("ready")
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)

    if world.rank == 1:
        return fork_apart(play, end if victim == 1 else None)
    if victim == 0:
        threading.Thread(target=end, args=[os.getpid()]).start()
    return play()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_in_another_pid_namespace(victim: int) -> None:
    if (reason := why_no_pids()) is not None:
        pytest.skip(reason)
    caught = run_outcomes(2, _lose_one_apart, victim)[1 - victim].value
    assert (caught.kind, caught.peer) == ("PeerLostError", victim), caught
    assert caught.seconds < SOON


def _all_die(world: World, in_an_operation: bool) -> None:
    world.init()
    for elements in (SMALL, LARGE):
        dist.all_reduce(torch.zeros(elements))
    if in_an_operation:
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGKILL]).start()
        _reduce_for_ever(LARGE)
    os.kill(os.getpid(), signal.SIGKILL)


def _left_behind() -> set[str]:
    """Return whatever carries fastcomm's name in the system: files, sockets, open memory files."""
    found = {str(path) for path in Path("/dev/shm").glob("*fastcomm*")}
    found |= {
        line.split()[-1]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if "fastcomm-" in line
    }
    return found


@pytest.mark.parametrize("transport", ["memfd", "posix"])
@pytest.mark.parametrize("in_an_operation", [False, True])
def test_killing_every_rank_leaves_nothing(transport: str, in_an_operation: bool) -> None:
    before, files = _left_behind(), set(os.listdir("/dev/shm"))
    outcomes = run_outcomes(
        3, _all_die, in_an_operation, environment={"FASTCOMM_TRANSPORT": transport}
    )
    assert [outcome.exitcode for outcome in outcomes] == [-signal.SIGKILL] * 3
    deadline = time.monotonic() + ENDS
    while _left_behind() - before and time.monotonic() < deadline:
        time.sleep(0.05)  # another test run on this machine may form a group at this moment
    assert _left_behind() <= before
    assert not [name for name in set(os.listdir("/dev/shm")) - files if "fastcomm" in name]

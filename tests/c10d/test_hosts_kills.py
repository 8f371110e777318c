"""Ranks and whole hosts are killed at any moment of composed calls: the others are told who died.

What is called, who dies and when, is a seed's; a failed seed plays again by its name alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from random import Random

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import Host
from support.patience import SOON
from support.ranks import World, run_outcomes
from support.stores import join_hosts

import fastcomm

pytestmark = pytest.mark.serial  # network namespaces; times to errors are looked at

PLACES = "0011"
SIZE = len(PLACES)
# A dead rank is to be known by its connection, not by the time in which nothing came from it.
ENVIRONMENT = {"FASTCOMM_LINK_TIMEOUT_S": "0"}
COUNTS = [1, 400, 5000, 100_000, 2_500_000]  # enclosed, short, in slices, in several chunks


def _victims(random: Random) -> list[int]:
    return random.choice([[0], [1], [2], [3], [0, 1], [2, 3]])


def _calls(random: Random) -> None:
    """Call what all ranks call, if theirs are in the same state, and check what comes of it."""
    count = random.choice(COUNTS)
    kind = random.randrange(6)
    part, whole = torch.ones(count), torch.ones(SIZE * count)
    total = float(SIZE)
    if kind == 0:
        dist.all_reduce(part)
    elif kind == 1:
        dist.reduce_scatter_tensor(part, whole)
    elif kind == 2:
        dist.all_gather_into_tensor(whole, part)
    elif kind == 3:
        dist.broadcast(part, random.randrange(SIZE))
    elif kind == 4:
        works = [dist.all_reduce(each, async_op=True) for each in (part, whole)]
        for work in works:
            work.wait()
        assert whole[-1].item() == total
    else:
        dist.barrier()
    assert part[0].item() == part[-1].item() == (total if kind in (0, 1, 4) else 1.0)


def _for_ever(random: Random) -> None:
    while True:
        _calls(random)


def _die(mark: Path) -> None:
    mark.write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def _is_killed(world: World, hosts: list[Host], port: int, seed: int) -> tuple[Caught, float]:
    """Return what a survivor raised, and how many seconds after the first death."""
    join_hosts(world, hosts, port, PLACES)
    assert fastcomm.explain("all_reduce", torch.empty(1)).algorithm == "composed"
    dist.barrier()
    random = Random(seed)
    victims = _victims(random)
    after = random.uniform(0.0, 0.6)
    marks = [Path(world.directory, f"death of {rank}") for rank in victims]
    if world.rank in victims:
        # A thread: a handler of a signal would run between calls alone.
        threading.Timer(after, _die, [marks[victims.index(world.rank)]]).start()
    caught = catch(_for_ever, random)
    died = min(float(mark.read_text()) for mark in marks if mark.exists())
    assert catch(dist.all_reduce, torch.ones(3)).peer == caught.peer
    start = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - start < SOON
    return caught, caught.at - died


IN_RELEASES = [pytest.param(seed, marks=pytest.mark.release) for seed in range(8, 200)]


@pytest.mark.parametrize("seed", [*range(8), *IN_RELEASES])
def test_survivors_are_told_who_died(hosts: list[Host], seed: int) -> None:
    victims = _victims(Random(seed))
    outcomes = run_outcomes(SIZE, _is_killed, hosts, 29850, seed, environment=ENVIRONMENT)
    for outcome in outcomes:
        if outcome.rank in victims:
            assert outcome.exitcode == -signal.SIGKILL, outcome
            continue
        assert outcome.error is None, outcome.error
        caught, seconds = outcome.value
        print(f"rank {outcome.rank}: {seconds:.3f} s after the death of {victims}")
        assert (caught.kind, outcome.exitcode) == ("PeerLostError", 0), caught
        assert caught.peer in victims, caught
        assert "died. Look at its own output" in caught.text, caught
        assert seconds < SOON

"""What ranks run in the tests of `fastcomm.bench`; in a module, so that a new process finds it."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from fastcomm._measure import queued
from fastcomm._measure.cases import CASES, REDUCTIONS
from fastcomm._measure.device_time import Sample, Work
from fastcomm._measure.objects import all_gather_object
from fastcomm._measure.rank import Rank
from fastcomm._measure.timing import Samples, agree, max_over_ranks, measure


def add(rank: Rank, number: int) -> int:
    """Report a message, return a value."""
    rank.report(f"hello from {rank.rank}")
    return rank.rank + number


def sum_over_gloo(rank: Rank) -> float:
    """Join the default group without arguments; what starts ranks leaves nothing to read."""
    assert "FASTCOMM_BENCH_KEY" not in os.environ
    dist.init_process_group("gloo")
    tensor = torch.full((4,), float(rank.rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    assert torch.get_num_threads() == 1
    return float(tensor.sum())


def raise_on_one(rank: Rank, folder: str) -> None:
    """Raise on rank 1, sleep on the others; every rank leaves its process id."""
    Path(folder, str(rank.rank)).write_text(str(os.getpid()))
    if rank.rank == 1:
        while len(list(Path(folder).iterdir())) < rank.size:
            time.sleep(0.01)
        raise ValueError("planted")
    time.sleep(600)


def die_on_one(rank: Rank) -> None:
    """Kill rank 1, as the kernel does when memory runs out."""
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def leave_traces(rank: Rank, folder: str) -> None:
    """Write from a thread that outlives this call, and from the interpreter's end."""

    def later() -> None:
        time.sleep(0.3)
        Path(folder, "thread").touch()

    atexit.register(Path(folder, "atexit").touch)
    threading.Thread(target=later).start()


def sleep(rank: Rank) -> None:
    """Outlive any timeout."""
    time.sleep(600)


def check_cases(
    rank: Rank, backend: str, dtypes: list[str]
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return by (case, dtype) the wrong elements of a good group, and of one that does nothing."""
    dist.init_process_group(backend)
    control = dist.group.WORLD
    found = {}
    for name, dtype, reduction in itertools.product(CASES, dtypes, REDUCTIONS):
        if not CASES[name].sized and dtype != dtypes[0]:
            continue
        if reduction != "sum" and not CASES[name].reduces:
            continue
        case = CASES[name](1000, getattr(torch, dtype), rank.rank, rank.size)
        case.reduction = reduction
        if case.why_not() or (backend, reduction) == ("gloo", "avg"):
            continue
        good = case.check(control, control)
        case.bind = lambda group: lambda: None  # type: ignore[method-assign]
        # A rank that loses the processor for long enough comes late even without a barrier.
        tries = 1 if case.sized else 5
        found[case.label, dtype] = (good, max(case.check(control, control) for _ in range(tries)))
    dist.destroy_process_group()
    return found


def time_two(rank: Rank) -> tuple[list[int], list[int], list[Samples]]:
    """Run `agree`, `max_over_ranks` and `measure` with calls of known length."""
    dist.init_process_group("gloo")
    control = dist.group.WORLD
    chosen = agree([10 + rank.rank], control)
    slowest = max_over_ranks([rank.rank, 5 - rank.rank], control)
    calls = [lambda: time.sleep(0.001), lambda: time.sleep(0.004 * rank.rank)]
    samples = measure(calls, control, 0.4)
    dist.destroy_process_group()
    return chosen, slowest, samples


def time_queued(rank: Rank, doublings: int) -> tuple[int, str, list[int], list[int], list[int]]:
    """Use a `DeviceTimer` whose queue is too slow on rank 1 until the wait has doubled so often."""
    dist.init_process_group("gloo")
    asked: list[int] = []

    def queue(work: Work, cycles: int, before: Work) -> Sample | None:
        asked.append(cycles)
        before()
        work()
        in_time = rank.rank == 0 or cycles >= queued.DeviceTimer.SHORTEST << doublings
        milliseconds = 50.0 * (rank.rank + 1)  # of 50 calls
        return Sample(milliseconds, milliseconds / 2) if in_time else None

    queued.queue = queue  # type: ignore[assignment, attr-defined]
    queued.DeviceTimer._synchronize = lambda self: None  # type: ignore[method-assign]
    timer = queued.DeviceTimer(lambda: None, dist.group.WORLD, torch.device("cuda"))
    timer.pilot()
    times = max_over_ranks(timer.batch(4), dist.group.WORLD)
    dist.destroy_process_group()
    return timer.calls, timer.clock, times, timer.host_ns, asked


def gather_values(rank: Rank) -> list[object]:
    """Gather values of unequal lengths, where torch finds no NumPy."""
    dist.init_process_group("gloo")
    torch.Tensor.numpy = None
    control = dist.group.WORLD
    found = all_gather_object((f"rank {rank.rank}", rank.rank + 0.5, "ü" * rank.rank), control)
    dist.destroy_process_group()
    return found

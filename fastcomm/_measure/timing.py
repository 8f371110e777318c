"""Measure one operation over several backends, interleaved, for a given time.

What is measured: the wall time of every single blocking call, on every rank, with
``time.perf_counter_ns``; the time of an iteration is the **maximum over the ranks** of the i-th
call.  Calls follow each other without pause inside a batch.

Why batches are interleaved: the speed of a machine changes while a run goes on (clock, neighbours,
the distance between two virtual cores), so only batches that lie close together can be compared.
Each round runs one batch on every backend, and every other round in reverse order.

Ranks must make the same number of calls.  All counts are therefore chosen by rank 0 and sent to the
others over the control group, which is no group under test.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

Call = Callable[[], object]

ROUNDS = 5
MAX_ITERATIONS = 20_000  # of one backend over all rounds: enough for 200 samples above p99
MIN_ITERATIONS = 10
_WARM_UP_S = 0.02
_MAX_WARM_UP = 200
# A batch follows one on another backend: its first calls find cold caches and sleeping threads.
UNTIMED_PER_BATCH = 2


@dataclass(frozen=True)
class Samples:
    """Times in ns, maximum over ranks, of one backend: ``batches[round][iteration]``.

    Attributes:
        batches: of a call each, or of the calls of a sample, divided by their number.
        calls: in a sample.
        clock: ``wall``, or ``device`` where the device's time was taken, without the host's.
        host_ns: what a call took the host meanwhile; empty with the wall's clock.
    """

    batches: list[list[int]]
    calls: int = 1
    clock: str = "wall"
    host_ns: list[int] = field(default_factory=list)

    @property
    def times_ns(self) -> list[int]:
        """All iterations of all rounds."""
        return [time_ns for batch in self.batches for time_ns in batch]


def agree(values: Sequence[int], control: dist.ProcessGroup) -> list[int]:
    """Rank 0's ``values`` on every rank (the others' are ignored, only their number counts)."""
    tensor = torch.tensor(list(values), dtype=torch.int64)
    dist.broadcast(tensor, 0, group=control)
    return [int(value) for value in tensor]


def time_batch(call: Call, iterations: int) -> list[int]:
    """Times of ``iterations`` calls in ns on this rank, without the garbage collector."""
    clock = time.perf_counter_ns
    times = [0] * iterations
    enabled = gc.isenabled()
    gc.disable()
    try:
        for index in range(iterations):
            start = clock()
            call()
            times[index] = clock() - start
    finally:
        if enabled:
            gc.enable()
    return times


def max_over_ranks(times_ns: Sequence[int], control: dist.ProcessGroup) -> list[int]:
    """For every iteration the time of its slowest rank; all ranks call it with equal lengths."""
    tensor = torch.tensor(list(times_ns), dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=control)
    return [int(value) for value in tensor.tolist()]


def choose_iterations(
    costs_ns: Sequence[float], budget_s: float, rounds: int = ROUNDS
) -> list[int]:
    """Calls in one batch of every backend, so that all batches take about ``budget_s`` together.

    Every backend gets the same share of the time, between MIN_ITERATIONS and MAX_ITERATIONS calls
    over all rounds.
    """
    share_ns = budget_s * 1e9 / len(costs_ns) / rounds
    least, most = -(-MIN_ITERATIONS // rounds), MAX_ITERATIONS // rounds
    return [max(least, min(most, int(share_ns / max(cost, 1.0)))) for cost in costs_ns]


class Timer:
    """Timing of one backend's call: here each blocking call by itself, by the wall's clock.

    All ranks make the same calls of it, in the same order.

    Args:
        call: what is timed.
        control: a group of the same ranks, for what they have to agree on.
    """

    clock = "wall"
    calls = 1

    warm_up = UNTIMED_PER_BATCH
    """Calls before each batch that are not timed."""

    def __init__(self, call: Call, control: dist.ProcessGroup) -> None:
        self.call, self.control = call, control
        self.host_ns: list[int] = []

    def pilot(self) -> float:
        """Warm up and estimate the cost of one sample in ns, on the slowest rank.

        The root of a broadcast may return early: its own times would lead to far too many calls.
        """
        dist.barrier(group=self.control)
        self.call()
        (cost,) = max_over_ranks(time_batch(self.call, 1), self.control)
        (more,) = agree([min(_MAX_WARM_UP, int(_WARM_UP_S * 1e9 / max(cost, 1)))], self.control)
        if not more:
            return cost
        return statistics.median(max_over_ranks(time_batch(self.call, more), self.control))

    def batch(self, samples: int) -> list[int]:
        """Times in ns of so many samples on this rank, after some that are not timed."""
        for _ in range(self.warm_up):
            self.call()
        return time_batch(self.call, samples)


def measure(
    calls: Sequence[Call],
    control: dist.ProcessGroup,
    budget_s: float,
    rounds: int = ROUNDS,
    timer: Callable[[Call, dist.ProcessGroup], Timer] = Timer,
    iterations: int = 0,
    warm_up: int = UNTIMED_PER_BATCH,
) -> list[Samples]:
    """Time ``calls``, one for each backend, for about ``budget_s`` seconds in all.

    Called by all ranks with calls in the same order.  ``budget_s`` counts on rank 0 only. With
    ``iterations`` so many samples of each are taken instead, rounded up to whole rounds. Before
    each batch ``warm_up`` calls are not timed.
    """
    start = time.perf_counter()
    timers = [timer(call, control) for call in calls]
    for each in timers:
        each.warm_up = warm_up
    costs = [each.pilot() for each in timers]
    left = budget_s - (time.perf_counter() - start)
    chosen = choose_iterations(costs, left, rounds)
    samples = agree([-(-iterations // rounds) or each for each in chosen], control)
    batches: list[list[tuple[str, list[int]]]] = [[] for _ in timers]
    order = list(range(len(timers)))
    for number in range(rounds):
        for index in order if number % 2 == 0 else reversed(order):
            dist.barrier(group=control)
            times = timers[index].batch(samples[index])
            batches[index].append((timers[index].clock, times))
    return [
        Samples(
            # A timer may have come to another clock, on all ranks: what it had before is no part.
            [max_over_ranks(batch, control) for clock, batch in of_backend if clock == each.clock],
            each.calls,
            each.clock,
            each.host_ns,
        )
        for each, of_backend in zip(timers, batches, strict=True)
    ]

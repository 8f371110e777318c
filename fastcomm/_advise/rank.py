"""What ranks measure for the advisor, all beside each other, since they share a machine.

A group of fastcomm is the default one. Each function is called by all ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fastcomm._advise.replay import Speeds
from fastcomm._advise.step import Bucket, Step, median
from fastcomm._advise.work import Work

WARM_UP = 4  # steps: DDP makes its buckets anew after the first
ROUNDS = 7
_MOST_MEMORY = 64 << 20  # of the messages that take turns, so that caches hold none of them


@dataclass(frozen=True)
class Measured:
    """What one rank has found."""

    step: Step
    seconds: dict[int, float]  # of an all_reduce alone, by bytes
    speeds: Speeds


def measure(work: Work, steps: int) -> Measured:
    """Measure a step that sends nothing, what its buckets cost alone, and both at once."""
    step = record(work, steps)
    sizes = sorted({bucket.bytes for bucket in step.buckets})
    seconds = {size: all_reduce_alone(size) for size in sizes}
    speeds = Speeds()
    if sizes:
        speeds = beside_each_other(lambda: _forward_and_backward(work), sizes[-1], seconds)
    return Measured(step, seconds, speeds)


def record(work: Work, steps: int) -> Step:
    """Return the medians of a step in DDP whose buckets are not sent."""
    issued: list[tuple[int, float]] = []  # bytes, and when

    def keep(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        issued.append((buffer.nbytes, time.perf_counter()))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    model = DistributedDataParallel(work.model)
    # A lambda, since DDP refuses annotations that are strings.
    model.register_comm_hook(None, lambda _, bucket: keep(bucket))
    optimizer = work.optimizer_or_sgd()
    found = []
    for _ in range(WARM_UP + steps):
        dist.barrier()
        issued.clear()
        begin = time.perf_counter()
        optimizer.zero_grad()
        forward = time.perf_counter()
        loss = work.loss(model)
        backward = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        optimizer.step()
        buckets = tuple(Bucket(size, at - backward) for size, at in issued)
        last = issued[-1][1] if issued else backward
        found.append(
            Step(
                begin=forward - begin,
                forward=backward - forward,
                buckets=buckets,
                finish=end - last,
                optimizer=time.perf_counter() - end,
            )
        )
    return median(found[WARM_UP:])


def all_reduce_alone(size: int) -> float:
    """Return the median time of an all_reduce of so many bytes of float32, in seconds."""
    turns = _messages(size)
    times = []
    for number in range(5 * ROUNDS):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(turns[number % len(turns)])
        times.append(time.perf_counter() - begin)
    return _slowest(statistics.median(times[ROUNDS:]))


def beside_each_other(compute: Callable[[], None], size: int, seconds: dict[int, float]) -> Speeds:
    """Return the speeds of a computation and of messages of a size while both go on."""
    compute()
    one = _slowest(statistics.median(_timed(compute) for _ in range(ROUNDS)))
    repeats = max(1, round(0.05 / one))
    # They outlast the computation, however slow it becomes.
    count = min(400, round(3 * repeats * one / seconds[size]) + 2)
    turns = _messages(size)
    alone, beside, total = [], [], []
    for _ in range(ROUNDS):
        dist.barrier()
        alone.append(_timed(compute, repeats))
        dist.barrier()
        begin = time.perf_counter()
        works = [
            dist.all_reduce(turns[number % len(turns)], async_op=True) for number in range(count)
        ]
        beside.append(_timed(compute, repeats))
        for work in works:
            work.wait()
        total.append(time.perf_counter() - begin)
    without, both, all_of_it = (
        _slowest(statistics.median(times)) for times in (alone, beside, total)
    )
    moved = count * seconds[size] - max(0.0, all_of_it - both)  # beside it, in seconds alone
    return Speeds(min(1.0, without / both), min(1.0, max(0.01, moved / both)))


def _messages(size: int) -> Sequence[torch.Tensor]:
    return [torch.zeros(max(1, size // 4)) for _ in range(max(2, min(8, _MOST_MEMORY // size)))]


def _forward_and_backward(work: Work) -> None:
    work.loss(work.model).backward()


def _timed(call: Callable[[], None], times: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - begin


def _slowest(seconds: float) -> float:
    """Return the most that any rank has: all wait for it."""
    most = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most.item())

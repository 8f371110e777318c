"""One rank's part of ``fastcomm tune``: time the candidates side by side; rank 0 chooses."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _native, _register
from fastcomm._machine import tuning as _tuning
from fastcomm._measure.cases import CASES
from fastcomm._measure.queued import timer_on
from fastcomm._measure.rank import Rank, begin
from fastcomm._measure.timing import Call, Timer, agree, max_over_ranks, measure
from fastcomm.tune.candidates import OVERLAPPED, Message, Step, best, scores

_ROUNDS = 3  # of each candidate, in turn
_LARGEST_SIDE = 4096  # of the matrices of an overlapped step
_BUCKETS = 4  # of an overlapped step
# Bytes to send before timing: at least a group's slots, whose memory is slow when first used.
_ROTATION = 16 << 20
_MOST_WARM_UP = 2000  # calls


def run_rank(
    rank: Rank,
    steps: Sequence[Step],
    on_devices: bool,
    budget_s: float,
    prepare: Callable[[], None] | None,
) -> dict[str, int]:
    """Choose in all steps, and return the values that differ from the defaults.

    Rank 0 reports a row for each candidate. ``prepare`` is called before the native library is
    loaded.
    """
    untuned = {_tuning.SWITCH: "off"}
    device = begin(rank, prepare, _tuning.SETTINGS.values(), untuned, on_devices)
    place = Place(device, device.type, lambda tried: _make_group(rank.size, tried, device))
    values: dict[str, int] = {}
    for step in steps:
        values = choose(rank, step, values, place, step.share * budget_s)
    _native.load().set_tuning(rank.size)  # the defaults again
    dist.barrier()
    dist.destroy_process_group()
    return values


@dataclass(frozen=True)
class Place:
    """Where candidates are timed.

    Attributes:
        device: of tensors.
        on: its name in tables.
        form: makes a group of all ranks that uses these values.
        rotation: bytes to send before timing, on the host.
        confirms: compare what is best with the default once more. The best of several is often
            only the luckiest, where times differ much.
    """

    device: torch.device
    on: str
    form: Callable[[dict[str, int]], dist.ProcessGroup]
    rotation: int = _ROTATION
    confirms: bool = False


def choose(
    rank: Rank, step: Step, before: dict[str, int], place: Place, budget_s: float
) -> dict[str, int]:
    """Return the values ``before``, with those of the step's best candidate.

    The default group is of all ranks, and for what they have to agree on. Rank 0 reports a row for
    each candidate.
    """
    control = dist.group.WORLD
    assert control is not None
    tried = [{**before, **candidate} for candidate in step.candidates]
    groups = [place.form(values) for values in tried]

    def begins(message: Message) -> None:
        if rank.rank == 0:
            rank.report({"begins": f"{step.name}: {message.operation} of {message.size} bytes"})

    times = _times(rank, step, groups, place, budget_s, begins)
    scored = scores(times)
    (index,) = agree([best(scored, step.gain)], control)
    if index != 0 and place.confirms:
        pair, share = [groups[0], groups[index]], 2 / len(groups)
        again = scores(_times(rank, step, pair, place, share * budget_s, lambda message: None))
        (confirmed,) = agree([best(again, step.gain)], control)
        index *= confirmed
    for group in groups:
        dist.destroy_process_group(group)
    for number, candidate in enumerate(step.candidates):
        if rank.rank != 0:
            break
        row: dict[str, Any] = {"step": step.name, "candidate": candidate, "ranks": rank.size}
        row.update(on=place.on, chosen=number == index, ratio=round(scored[number], 3))
        row["us"] = {
            f"{message.operation} {message.size}": round(of_message[number] / 1e3, 2)
            for message, of_message in zip(step.messages, times, strict=True)
        }
        rank.report(row)
    return tried[index]


def _times(
    rank: Rank,
    step: Step,
    groups: Sequence[dist.ProcessGroup],
    place: Place,
    budget_s: float,
    begins: Callable[[Message], None],
) -> list[list[float]]:
    """Return for each message the times of all groups, in ns."""
    control = dist.group.WORLD
    assert control is not None
    times = []
    for message in step.messages:
        begins(message)
        calls = _calls(message, groups, place.device, rank)
        for call in calls if place.device.type == "cpu" else ():
            for _ in range(min(_MOST_WARM_UP, place.rotation // message.size)):
                call()
        timer = Timer if message.operation == OVERLAPPED else timer_on(place.device)
        budget = budget_s / len(step.messages)
        samples = measure(calls, control, budget, rounds=_ROUNDS, timer=timer)
        times.append([statistics.median(each.times_ns) for each in samples])
    return times


def _make_group(size: int, values: dict[str, int], device: torch.device) -> dist.ProcessGroup:
    """Make a group that uses ``values``, and run a first operation on the device."""
    _native.load().set_tuning(size, **values)
    group: dist.ProcessGroup = dist.new_group(backend=_register.name_on(device.type))
    # The first operation on a device chooses what serves it, by the values at that time.
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    return group


def _calls(
    message: Message, groups: Sequence[dist.ProcessGroup], device: torch.device, rank: Rank
) -> list[Call]:
    """Return a call for each group, with the same tensors."""
    if message.operation == OVERLAPPED:
        return [overlapped_step(group, device, message.size) for group in groups]
    from fastcomm._measure.cases.base import buffers_from

    with buffers_from(lambda numel, dtype: torch.empty(numel, dtype=dtype, device=device)):
        case = CASES[message.operation](message.size, torch.float32, rank.rank, rank.size)
    case.prepare()
    return [case.bind(group) for group in groups]


def overlapped_step(group: dist.ProcessGroup, device: torch.device, size: int) -> Call:
    """Return a call that reduces buckets of ``size`` bytes beside matrix products.

    It returns when the device has finished. Buckets lie where DDP's do: in memory that the group
    uses in place, if it has such memory. The products take about as long as the reductions, so that
    the time shows how much each slows down the other.
    """
    import fastcomm

    module = torch.get_device_module(device)
    control = dist.group.WORLD
    assert control is not None
    numel = size // 4
    buckets = [fastcomm.empty(numel, device=device, group=group).zero_() for _ in range(_BUCKETS)]
    side = min(_LARGEST_SIDE, 1 << math.isqrt(numel).bit_length() - 1)
    matrix = torch.zeros(side, side, device=device)
    product = torch.zeros(side, side, device=device)

    def timed(body: Callable[[], None]) -> int:
        for _ in range(2):  # the first run also loads kernels
            module.synchronize(device)
            start = time.perf_counter_ns()
            body()
            module.synchronize(device)
        (slowest,) = max_over_ranks([time.perf_counter_ns() - start], control)
        return slowest

    def reduce() -> None:
        for bucket in buckets:
            dist.all_reduce(bucket, group=group)

    def compute() -> None:
        torch.mm(matrix, matrix, out=product)

    products = max(1, round(timed(reduce) / max(timed(compute), 1) / _BUCKETS))
    (products,) = agree([min(products, 64)], control)

    def step() -> None:
        works = []
        for bucket in buckets:
            for _ in range(products):
                compute()
            works.append(dist.all_reduce(bucket, group=group, async_op=True))
        for work in works:
            work.wait()
        module.synchronize(device)

    return step

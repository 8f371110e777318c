"""Walk over operations and sizes: all backends in the same processes, one row for each point.

All backends and element types of a point are measured in turns, so that rows can be compared.

The default group runs Gloo and only controls; every backend under test has a group of its own.
The budget is shared out as the sweep goes: each point gets an equal part of the time that is left,
and at least half of its share of the whole, so that large sizes that overrun do not starve those
after them.

A stock backend that raises is left out of that point, with a row that says why, on devices from
then on: NCCL where ranks share a device, symmetric memory where there is none. What fastcomm raises
ends the run.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import fastcomm
from fastcomm._measure.cases import CASES, Case
from fastcomm._measure.cases.base import buffers_from
from fastcomm._measure.contenders import Contender
from fastcomm._measure.launch import launch, run_in_job, running_job
from fastcomm._measure.line_up import make, starter
from fastcomm._measure.queued import timer_on
from fastcomm._measure.rank import Rank
from fastcomm._measure.stats import bandwidth_gbs, summarize
from fastcomm._measure.timing import UNTIMED_PER_BATCH, Samples, agree, measure

Row = dict[str, Any]


class WrongResultError(RuntimeError):
    """An operation returned wrong elements."""


@dataclass(frozen=True)
class SweepOptions:
    """The points to measure.  ``sizes`` in bytes, ``budget_s`` for all points together.

    Attributes:
        device: the type of device whose memory tensors lie in; rank r has the device with number r,
            and shares it where there are fewer.
        dtypes: names in torch, of the elements.
        iterations: of each row, rounded up; 0: as many as there is time for.
        warm_up: calls before each batch that are not timed.
        reductions: names in `REDUCTIONS`, of the operations that reduce.
        prepare: called first in each rank; importable, since ranks are processes.
    """

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    backends: tuple[str, ...]
    ranks: int = 2
    dtypes: tuple[str, ...] = ("float32",)
    budget_s: float = 75.0
    iterations: int = 0
    warm_up: int = UNTIMED_PER_BATCH
    reductions: tuple[str, ...] = ("sum",)
    check: bool = True
    device: str = "cpu"
    prepare: Callable[[], None] | None = None

    def points(self) -> Iterator[tuple[str, int, str]]:
        """(operation, size, reduction) in order of measurement.

        An operation without size occurs once, and one that does not reduce as a sum.
        """
        for op in self.ops:
            for reduction in self.reductions if CASES[op].reduces else ("sum",):
                for size in self.sizes if CASES[op].sized else (0,):
                    yield op, size, reduction


def share_of(budget_s: float, points: int, left_s: float, points_left: int) -> float:
    """Seconds for the next point; see the module's text."""
    return max(left_s / points_left, budget_s / points / 2)


def run_sweep(options: SweepOptions, on_row: Callable[[Row], None]) -> None:
    """Start the ranks and measure; ``on_row`` gets every row as soon as it is there.

    In a job that runs (`fastcomm._measure.launch.running_job`) this process is one of them, and
    rank 0 alone gets rows.

    Raises:
        RankError: a rank failed; wrong results are `WrongResultError` as its cause.
    """
    if running_job():
        run_in_job(run_rank, options, on_message=on_row)
        return
    # The least number of iterations may exceed the budget on a slow machine: allow for that.
    timeout_s = 4 * options.budget_s + 900
    launch(
        run_rank,
        options.ranks,
        options,
        timeout_s=timeout_s,
        on_message=lambda _, row: on_row(row),
        start=starter(options.backends),
    )


def run_rank(rank: Rank, options: SweepOptions) -> None:
    """The sweep on one rank; rank 0 reports the rows."""
    if options.prepare is not None:
        options.prepare()
    device = _own_device(rank, options.device)
    dist.init_process_group("gloo")
    control = dist.group.WORLD
    assert control is not None
    contenders = make(options.backends, device)
    points = list(options.points())
    measured: set[tuple[str, int, torch.dtype]] = set()
    start = time.perf_counter()
    for index, (op, size, reduction) in enumerate(points):
        left_s = options.budget_s - (time.perf_counter() - start)
        share_s = share_of(options.budget_s, len(points), left_s, len(points) - index)
        (budget_ms,) = agree([int(share_s * 1000)], control)
        with _buffers_on(device, contenders):
            cases = [
                CASES[op](size, getattr(torch, dtype), rank.rank, rank.size)
                for dtype in options.dtypes
            ]
        for case in cases:
            case.reduction = reduction
        # The least size may be above several of those wished for.
        cases = [case for case in cases if (case.label, case.nbytes, case.dtype) not in measured]
        measured.update((case.label, case.nbytes, case.dtype) for case in cases)
        for row in measure_point(cases, contenders, control, options, budget_ms / 1000, device):
            if rank.rank == 0:
                rank.report(row)
        del cases
        gc.collect()
    dist.barrier(group=control)
    dist.destroy_process_group()


def _own_device(rank: Rank, kind: str) -> torch.device:
    """Choose this rank's device, and make it the current one."""
    if kind == "cpu":
        return torch.device("cpu")
    module = torch.get_device_module(kind)
    count = module.device_count()
    if count == 0:
        raise RuntimeError(f"there is no device of type {kind} here")
    if count < rank.size:  # else they refuse
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    device = torch.device(kind, rank.rank % count)
    module.set_device(device)
    return device


def _buffers_on(
    device: torch.device, contenders: list[Contender]
) -> contextlib.AbstractContextManager[None]:
    """Let cases have their buffers on ``device``, shared ones in memory of fastcomm's group."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    own = [each.group for each in contenders if each.label == "fastcomm"]

    def ordinary(numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, device=device)

    def shared(numel: int, dtype: torch.dtype) -> torch.Tensor:
        # The group has no such memory before its first collective.
        dist.all_reduce(ordinary(1, torch.float32).zero_(), group=own[0])
        return fastcomm.empty(numel, dtype=dtype, device=device, group=own[0])

    return buffers_from(ordinary, shared if own else None)


def measure_point(
    cases: Sequence[Case],
    contenders: list[Contender],
    control: dist.ProcessGroup,
    options: SweepOptions,
    budget_s: float,
    device: torch.device,
) -> list[Row]:
    """Check, measure, check again; a row for every type of element and backend."""
    start = time.perf_counter()
    served: list[tuple[Case, Contender]] = []
    left_out = []
    for case, contender in itertools.product(cases, contenders):
        wrong, why = 0, case.why_not()
        if not why:
            may_fail = not contender.label.startswith("fastcomm")
            # On devices a backend that fails may do so again, much later.
            lasts = device.type != "cpu"
            why, wrong = contender.why_not(case, control, may_fail, lasts)
        served += [] if why else [(case, contender)]
        left_out += [_left_out(case, contender, options, why)] if why else []
        if options.check and not why:
            _raise_if_wrong(contender, case, wrong, control)
    for case in cases:
        case.prepare()
    # The check after the measurement takes about as long as the one before.
    left = budget_s - 2 * (time.perf_counter() - start)
    calls = [each.bind(case) for case, each in served]
    samples = []
    if calls:
        samples = measure(
            calls,
            control,
            left,
            timer=timer_on(device),
            iterations=options.iterations,
            warm_up=options.warm_up,
        )
    if options.check:
        for case, each in served:
            _check(each, case, control)
    rows = []
    for (case, each), of_it in zip(served, samples, strict=True):
        rows.append(make_row(case, each.label, options, of_it))
        if device.type != "cpu" and each.label.startswith("fastcomm"):
            rows[-1]["way"] = _way(each, device)
    return rows + left_out


def _way(contender: Contender, device: torch.device) -> str:
    """Return how a group of fastcomm moves data between devices: it may not be by its kernels."""
    tensor = torch.empty(1, device=device)
    return fastcomm.explain("all_reduce", tensor, group=contender.group).reason


def make_row(case: Case, label: str, options: SweepOptions, samples: Samples) -> Row:
    """The record of one (operation, size, backend); bandwidths are those of the median."""
    summary = summarize([time_ns / case.repeats for time_ns in samples.times_ns])
    algbw = bandwidth_gbs(case.nbytes, summary.median_us)
    row: Row = {
        "op": case.label,
        "bytes": case.nbytes,
        "dtype": str(case.dtype).removeprefix("torch."),
        "ranks": options.ranks,
        "backend": label,
        "iterations": summary.count,
        "min_us": round(summary.min_us, 3),
        "median_us": round(summary.median_us, 3),
        "p99_us": round(summary.p99_us, 3),
        "mean_us": round(summary.mean_us, 3),
        "batch_median_us": [
            round(statistics.median(b) / case.repeats / 1e3, 3) for b in samples.batches
        ],
        "algbw_gbs": round(algbw, 6),
        "busbw_gbs": round(algbw * case.bus_factor(options.ranks), 6),
        "checked": options.check,
    }
    if options.device != "cpu":
        row.update(device=options.device, clock=samples.clock, calls=samples.calls)
    if samples.host_ns:
        row["host_us"] = round(statistics.median(samples.host_ns) / case.repeats / 1e3, 3)
    return row


def _left_out(case: Case, contender: Contender, options: SweepOptions, why: str) -> Row:
    return {
        "op": case.label,
        "bytes": case.nbytes,
        "dtype": str(case.dtype).removeprefix("torch."),
        "ranks": options.ranks,
        "backend": contender.label,
        "left_out": why,
    }


def _check(contender: Contender, case: Case, control: dist.ProcessGroup) -> None:
    """Raise on every rank if the result is wrong on any rank."""
    _raise_if_wrong(contender, case, contender.check(case, control), control)


def _raise_if_wrong(
    contender: Contender, case: Case, wrong: int, control: dist.ProcessGroup
) -> None:
    of_all = torch.zeros(dist.get_world_size(control), dtype=torch.int64)
    of_all[dist.get_rank(control)] = wrong
    dist.all_reduce(of_all, group=control)
    if of_all.any():
        raise WrongResultError(
            f"{case.label} of {case.nbytes} bytes ({case.dtype}) over {contender.label}: wrong "
            f"elements on ranks 0, 1, ...: {of_all.tolist()} of {case.numel}"
        )

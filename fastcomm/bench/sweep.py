"""Walk over operations and sizes: all backends in the same processes, one row for each point.

The default group runs Gloo and only controls; every backend under test has a group of its own.
The budget is shared out as the sweep goes: each point gets an equal part of the time that is left,
and at least half of its share of the whole, so that large sizes that overrun do not starve those
behind them.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fastcomm.bench.cases import CASES, Case
from fastcomm.bench.launch import Rank, launch
from fastcomm.bench.stats import bandwidth_gbs, summarize
from fastcomm.bench.timing import Samples, agree, measure

Row = dict[str, Any]


class WrongResultError(RuntimeError):
    """An operation returned wrong elements."""


@dataclass(frozen=True)
class SweepOptions:
    """What to measure.  ``sizes`` in bytes, ``budget_s`` for all points together."""

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    backends: tuple[str, ...]
    ranks: int = 2
    dtype: str = "float32"
    budget_s: float = 75.0
    check: bool = True

    def points(self) -> Iterator[tuple[str, int]]:
        """(operation, size) in order of measurement; an operation without size occurs once."""
        for op in self.ops:
            for size in self.sizes if CASES[op].sized else (0,):
                yield op, size


def label_backends(backends: tuple[str, ...]) -> list[str]:
    """Names of the backends in results; a repeated one is numbered: ``gloo``, ``gloo-2``."""
    labels: list[str] = []
    for index, backend in enumerate(backends):
        seen = backends[:index].count(backend)
        labels.append(f"{backend}-{seen + 1}" if seen else backend)
    return labels


def share_of(budget_s: float, points: int, left_s: float, points_left: int) -> float:
    """Seconds for the next point; see the module's text."""
    return max(left_s / points_left, budget_s / points / 2)


def run_sweep(options: SweepOptions, on_row: Callable[[Row], None]) -> None:
    """Start the ranks and measure; ``on_row`` gets every row as soon as it is there.

    Raises:
        RankError: a rank failed; wrong results are `WrongResultError` as its cause.
    """
    # The least number of iterations may exceed the budget on a slow machine: allow for that.
    timeout_s = 4 * options.budget_s + 900
    launch(
        run_rank, options.ranks, options, timeout_s=timeout_s, on_message=lambda _, row: on_row(row)
    )


def run_rank(rank: Rank, options: SweepOptions) -> None:
    """The sweep on one rank; rank 0 reports the rows."""
    if "fake" in options.backends:  # torch's own that does nothing; known once this is imported
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("gloo")
    control = dist.group.WORLD
    assert control is not None
    groups = [dist.new_group(backend=backend) for backend in options.backends]
    points = list(options.points())
    measured: set[tuple[str, int]] = set()
    start = time.perf_counter()
    for index, (op, size) in enumerate(points):
        left_s = options.budget_s - (time.perf_counter() - start)
        share_s = share_of(options.budget_s, len(points), left_s, len(points) - index)
        (budget_ms,) = agree([int(share_s * 1000)], control)
        case = CASES[op](size, getattr(torch, options.dtype), rank.rank, rank.size)
        if (op, case.nbytes) in measured:  # the least size may be above several of those wished for
            continue
        measured.add((op, case.nbytes))
        for row in measure_point(case, groups, control, options, budget_ms / 1000):
            if rank.rank == 0:
                rank.report(row)
        del case
        gc.collect()
    dist.barrier(group=control)
    dist.destroy_process_group()


def measure_point(
    case: Case,
    groups: list[dist.ProcessGroup],
    control: dist.ProcessGroup,
    options: SweepOptions,
    budget_s: float,
) -> list[Row]:
    """Check, measure, check again; a row for every backend."""
    start = time.perf_counter()
    labels = label_backends(options.backends)
    if options.check:
        _check(case, groups, labels, control)
    case.prepare()
    # The check after the measurement takes about as long as the one before.
    left = budget_s - 2 * (time.perf_counter() - start)
    samples = measure([case.bind(group) for group in groups], control, left)
    if options.check:
        _check(case, groups, labels, control)
    return [make_row(case, label, options, its) for label, its in zip(labels, samples, strict=True)]


def make_row(case: Case, label: str, options: SweepOptions, samples: Samples) -> Row:
    """The record of one (operation, size, backend); bandwidths are those of the median."""
    summary = summarize([time_ns / case.repeats for time_ns in samples.times_ns])
    algbw = bandwidth_gbs(case.nbytes, summary.median_us)
    return {
        "op": case.name,
        "bytes": case.nbytes,
        "dtype": options.dtype,
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


def _check(
    case: Case, groups: list[dist.ProcessGroup], labels: list[str], control: dist.ProcessGroup
) -> None:
    """Raise on every rank if the result of any backend is wrong on any rank."""
    for group, label in zip(groups, labels, strict=True):
        wrong = torch.zeros(dist.get_world_size(control), dtype=torch.int64)
        wrong[dist.get_rank(control)] = case.check(group, control)
        dist.all_reduce(wrong, group=control)
        if wrong.any():
            raise WrongResultError(
                f"{case.name} of {case.nbytes} bytes ({case.dtype}) over {label}: wrong elements "
                f"on ranks 0, 1, ...: {wrong.tolist()} of {case.numel}"
            )

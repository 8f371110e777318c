"""The tail of a layer of tensor-parallel decoding: one operator, and the steps that it replaces.

    python benchmarks/add_rms_norm.py [--json results.jsonl]

A row of bf16 on each of two ranks that are bound to cores of their own. The sides:

    sum         torch.ops.fastcomm.all_reduce_ alone, for comparison
    fused       torch.ops.fastcomm.all_reduce_add_rms_norm_
    eager       the sum, residual.add_(x), torch.nn.functional.rms_norm
    compiled    the same with what follows the sum compiled by torch.compile
    whole       the same with the sum in the compiled graph too
    fused_whole the operator in a compiled graph

All of them in turn, in another order in each round, under torch.inference_mode(). A call counts as
long as its slowest rank took; the times are medians over all calls.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import fastcomm  # noqa: E402
from fastcomm.bench.records import RecordWriter  # noqa: E402

EPS = 1e-6
ROUNDS = 5
WIDTHS = (256, 1024, 4096)


def tail(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    residual.add_(x)
    return torch.nn.functional.rms_norm(residual, weight.shape, weight, EPS)


def whole(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    torch.ops.fastcomm.all_reduce_(x, name)
    return tail(x, residual, weight)


def fused(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, name: str) -> None:
    torch.ops.fastcomm.all_reduce_add_rms_norm_(x, residual, weight, EPS, name)


def sides_of(hidden: int, name: str) -> dict[str, Callable[[], Any]]:
    """Return the calls. Their sums are of zeros, but for those of `fused`, which stay bounded."""
    zeros, residual = torch.zeros(1, hidden).bfloat16(), torch.randn(1, hidden).bfloat16()
    weight = torch.ones(hidden).bfloat16()
    mine, own = torch.randn(1, hidden).bfloat16(), residual.clone()
    compiled = [torch.compile(each, fullgraph=True, dynamic=False) for each in (tail, whole, fused)]
    all_reduce = torch.ops.fastcomm.all_reduce_
    return {
        "sum": lambda: all_reduce(zeros, name),
        "fused": lambda: fused(mine, own, weight, name),
        "eager": lambda: whole(zeros, residual, weight, name),
        "compiled": lambda: (all_reduce(zeros, name), compiled[0](zeros, residual, weight)),
        "whole": lambda: compiled[1](zeros, residual, weight, name),
        "fused_whole": lambda: compiled[2](mine, own, weight, name),
    }


def measure(hidden: int, calls: int) -> dict[str, list[int]]:
    """Return each side's nanoseconds for each call, on this rank."""
    torch.set_num_threads(1)
    group = dist.group.WORLD
    assert group is not None
    order = random.Random(1)
    with torch.inference_mode():
        sides = sides_of(hidden, group.group_name)
        times: dict[str, list[int]] = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side in order.sample(list(sides), len(sides)):
                call = sides[side]
                for _ in range(20):
                    call()
                for _ in range(calls // ROUNDS):
                    start = time.perf_counter_ns()
                    call()
                    times[side].append(time.perf_counter_ns() - start)
    return times


def row_of(hidden: int, calls: int) -> dict[str, Any]:
    told = fastcomm.launch(measure, (hidden, calls), ranks=2, bind=True)
    medians = {
        side: round(statistics.median(map(max, *(times[side] for times in told))) / 1e3, 2)
        for side in told[0]
    }
    return {
        "operation": "all_reduce_add_rms_norm",
        "hidden": hidden,
        "dtype": "bfloat16",
        "ranks": 2,
        "median_us": medians,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hidden", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--calls", type=int, default=5000, help="of each side (default 5000)")
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    chosen = parser.parse_args(arguments)
    writer = RecordWriter(chosen.json, sys.argv) if chosen.json else None
    for hidden in chosen.hidden:
        row = row_of(hidden, chosen.calls)
        us = row["median_us"]
        print(f"hidden {hidden:5}: " + ", ".join(f"{side} {us[side]:.1f}" for side in us) + " us")
        if writer:
            writer.write(row)
    if writer:
        writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

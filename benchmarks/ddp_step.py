"""A step of DistributedDataParallel over each backend, interleaved, beside one that sends nothing.

    python benchmarks/ddp_step.py [--json results.jsonl]

A network of ten layers of 1024x1024 (40 MiB of gradients), trained by SGD with stock DDP. One side
has a hook that takes each bucket as it is, and sends nothing: what is left is computation, and
DDP's own copies into its buckets and out of them. What a step takes longer over a backend is
exposed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from fastcomm._measure.launch import launch
from fastcomm._measure.rank import Rank
from fastcomm._measure.timing import max_over_ranks
from fastcomm.bench.records import RecordWriter

WIDTH, LAYERS, ROWS = 1024, 10, 32
WARM_UP = 3
NOTHING = "nothing"


def _as_it_is(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _step_over(backend: str, options: dict[str, Any]) -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    group = dist.new_group(backend="gloo" if backend == NOTHING else backend)
    parallel = DistributedDataParallel(model, process_group=group, **options)
    if backend == NOTHING:
        parallel.register_comm_hook(None, lambda _, bucket: _as_it_is(bucket))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-6)
    data = torch.randn(ROWS, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        parallel(data).sum().backward()
        optimizer.step()

    return step


def _measure(rank: Rank, backends: list[str], steps: int, as_view: bool) -> list[dict[str, Any]]:
    dist.init_process_group("gloo")
    control = dist.group.WORLD
    assert control is not None
    options = {"gradient_as_bucket_view": as_view}
    sides = {backend: _step_over(backend, options) for backend in backends}
    times: dict[str, list[int]] = {backend: [] for backend in backends}
    rounds = tqdm(range(steps + WARM_UP), disable=None if rank.rank == 0 else True, leave=False)
    for number in rounds:
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for backend in order:
            dist.barrier(group=control)
            start = time.perf_counter_ns()
            sides[backend]()
            times[backend].append(time.perf_counter_ns() - start)
    rows = []
    for backend in backends:
        each = max_over_ranks(times[backend][WARM_UP:], control)
        row: dict[str, Any] = {
            "backend": backend,
            "ranks": rank.size,
            "gradient_as_bucket_view": as_view,
        }
        row.update(median_ms=round(statistics.median(each) / 1e6, 2), steps=steps)
        row["min_ms"] = round(min(each) / 1e6, 2)
        rows.append(row)
    idle = next(row["median_ms"] for row in rows if row["backend"] == NOTHING)
    for row in rows:
        row["times_of_nothing"] = round(row["median_ms"] / idle, 3)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40, help="of each backend (40)")
    parser.add_argument("--backends", nargs="+", default=["fastcomm", "gloo"])
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    chosen = parser.parse_args(arguments)
    backends = [NOTHING, *chosen.backends]
    rows: list[dict[str, Any]] = []
    for as_view in (False, True):
        rows += launch(_measure, chosen.ranks, backends, chosen.steps, as_view, timeout_s=600)[0]
        print(f"gradient_as_bucket_view={as_view}, {chosen.ranks} ranks: milliseconds of a step")
        for row in rows[-len(backends) :]:
            print(
                f"  {row['backend']:10} {row['median_ms']:8.2f}, least {row['min_ms']:8.2f},"
                f" {row['times_of_nothing']:.2f} of a step without communication"
            )
    if chosen.json:
        with RecordWriter(chosen.json, sys.argv) as writer:
            for row in rows:
                writer.write(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())

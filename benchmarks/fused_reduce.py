"""fused_all_reduce_ against the sequence of stock operations over Gloo, and the bare all_reduce.

    python benchmarks/fused_reduce.py [--json results.jsonl]

Gradients of ResNet-50 and of 12 transformer layers of width 768, made at those shapes. The sides:

    fused        reduce, average, unscale, inf check and norm: one call of fastcomm
    fused_shared the same for gradients that lie in shared memory, as in DDP's buckets
    fused_bf16   the same with bf16 on the wire
    stock        flatten, all_reduce over Gloo, divide, copy back, unscale and inf check as
                 torch.amp.GradScaler does them, norm as torch.nn.utils.get_total_norm
    bare         all_reduce over fastcomm of one flat tensor of as many bytes
    bare_shared  the same of a tensor in shared memory
    bare_gloo    the same over Gloo

All of them in turn in one run, in another order in each round; a round counts as long as its
slowest rank took. Times are medians over the rounds, ratios medians of the rounds' ratios.
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
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from model_shapes import resnet50, transformer  # noqa: E402

import fastcomm  # noqa: E402
from fastcomm._measure.launch import launch  # noqa: E402
from fastcomm._measure.rank import Rank  # noqa: E402
from fastcomm.bench.records import RecordWriter  # noqa: E402

LISTS = {"ResNet-50": resnet50, "12 transformer layers": transformer}
UNSCALE = 1 / 1024


def stock(grads: list[torch.Tensor], group: dist.ProcessGroup) -> torch.Tensor:
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat, group=group)
    flat.div_(dist.get_world_size(group))
    for grad, reduced in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
        grad.copy_(reduced)
    found_inf = torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, torch.tensor(UNSCALE))
    return torch.nn.utils.get_total_norm(grads)


def measure(rank: Rank, name: str, repeats: int) -> dict[str, list[float]]:
    """Return each side's milliseconds in each round, on this rank."""
    dist.init_process_group("fastcomm")
    gloo = dist.new_group(backend="gloo")
    assert gloo is not None
    made = [torch.randn(shape) for shape in LISTS[name]()]
    grads = [grad.clone() for grad in made]
    flat = torch.cat([grad.view(-1) for grad in made])
    shared = fastcomm.empty(len(flat))
    lengths = [grad.numel() for grad in made]
    views = [v.view(g.shape) for v, g in zip(shared.split(lengths), made, strict=True)]
    bucket = fastcomm.empty(len(flat))
    sides: dict[str, Callable[[], Any]] = {
        "fused": lambda: fastcomm.fused_all_reduce_(grads, scale=UNSCALE),
        "fused_shared": lambda: fastcomm.fused_all_reduce_(views, scale=UNSCALE),
        "fused_bf16": lambda: fastcomm.fused_all_reduce_(
            grads, scale=UNSCALE, comm_dtype=torch.bfloat16
        ),
        "stock": lambda: stock(grads, gloo),
        "bare": lambda: dist.all_reduce(flat, op=dist.ReduceOp.AVG),
        "bare_shared": lambda: dist.all_reduce(bucket, op=dist.ReduceOp.AVG),
        "bare_gloo": lambda: dist.all_reduce(flat, group=gloo),
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    order = random.Random(1)
    for repeat in range(repeats + 2):
        for side in order.sample(list(sides), len(sides)):
            for grad, value in zip(grads, made, strict=True):
                grad.copy_(value)  # else they would fade to zero
            for view, value in zip(views, made, strict=True):
                view.copy_(value)
            flat.fill_(1.0)
            bucket.fill_(1.0)
            dist.barrier()
            start = time.perf_counter()
            sides[side]()
            if repeat >= 2:
                times[side].append(1e3 * (time.perf_counter() - start))
        rank.report(repeat)
    dist.destroy_process_group()
    return times


def row_of(name: str, ranks: int, repeats: int) -> dict[str, Any]:
    with tqdm(total=repeats + 2, desc=f"{name}, {ranks} ranks", leave=False) as bar:
        told = launch(
            measure,
            ranks,
            name,
            repeats,
            timeout_s=120 + 10 * repeats,
            on_message=lambda rank, _: bar.update(rank == 0),
        )
    slowest = {
        side: [max(values) for values in zip(*(times[side] for times in told), strict=True)]
        for side in told[0]
    }
    fused = slowest["fused"]

    def ratio(over: list[float], under: list[float]) -> float:
        return round(statistics.median(a / b for a, b in zip(over, under, strict=True)), 2)

    return {
        "operation": "fused_all_reduce",
        "gradients": name,
        "bytes": 4 * sum(torch.Size(shape).numel() for shape in LISTS[name]()),
        "ranks": ranks,
        "median_ms": {side: round(statistics.median(t), 3) for side, t in slowest.items()},
        "times_faster_than_stock": ratio(slowest["stock"], fused),
        "times_the_bare_all_reduce": ratio(fused, slowest["bare"]),
        "shared_times_the_bare_all_reduce_shared": ratio(
            slowest["fused_shared"], slowest["bare_shared"]
        ),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=15, help="rounds (default 15)")
    parser.add_argument("--lists", nargs="+", choices=list(LISTS), default=list(LISTS))
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    chosen = parser.parse_args(arguments)
    writer = RecordWriter(chosen.json, sys.argv) if chosen.json else None
    for ranks in chosen.ranks:
        for name in chosen.lists:
            row = row_of(name, ranks, chosen.repeats)
            print(f"{name}, {row['bytes'] / 2**20:.0f} MiB, {ranks} ranks: median milliseconds")
            for side, ms in row["median_ms"].items():
                print(f"  {side:12} {ms:9.2f}")
            print(
                f"  fused: {row['times_faster_than_stock']} times faster than stock, "
                f"{row['times_the_bare_all_reduce']} times the bare all_reduce; in shared memory "
                f"{row['shared_times_the_bare_all_reduce_shared']} times"
            )
            if writer:
                writer.write(row)
    if writer:
        writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

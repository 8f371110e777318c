"""fused_reduce_add_coalesced on one GPU, against the stock sequence and a plain copy.

    python benchmarks/fused_reduce_cuda.py [--json results.jsonl]

Gradients of ResNet-50 and of 12 transformer layers of width 768, made at those shapes, once for
each replica; replicas share the first GPU. The sides:

    fused        sum, average, unscale, inf check and norm: one call of fastcomm
    fused_bf16   the same with bf16 in place of a wire
    norm         the norm alone, as clip_grad_norm_ takes it
    stock        flatten, sum, divide, unflatten, unscale and inf check as torch.amp.GradScaler does
                 them, norm as torch.nn.utils.get_total_norm
    copy         one flat tensor of as many bytes copied by torch

Times are medians of CUDA events around a call, the sides in turn in another order in each round.
Bandwidth counts what must be moved: n sources and the result; twice the bytes of a copy. Launches
are what torch.profiler sees on the device.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from model_shapes import resnet50, transformer  # noqa: E402

from fastcomm import _native, comm  # noqa: E402
from fastcomm.bench.records import RecordWriter  # noqa: E402

LISTS = {"ResNet-50": resnet50, "12 transformer layers": transformer}
UNSCALE = 1 / 1024
Work = Callable[[], Any]


def stock(lists: list[list[torch.Tensor]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the reduced gradients and their norm."""
    flat, *others = [_flatten_dense_tensors(values) for values in lists]
    for other in others:
        flat.add_(other)
    flat.div_(len(lists))
    grads = list(_unflatten_dense_tensors(flat, lists[0]))
    found_inf = torch.zeros(1, device=flat.device)
    unscale = torch.full((1,), UNSCALE, device=flat.device)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, unscale)
    return grads, torch.nn.utils.get_total_norm(grads)


def ours(
    lists: list[list[torch.Tensor]], wire_dtype: torch.dtype | None = None
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
    """Return the same."""
    sums, result = comm.fused_reduce_add_coalesced(lists, True, UNSCALE, wire_dtype)
    return sums, result.total_norm


def launches(work: Work) -> int:
    """Return how many kernels, copies and fills a call puts on the device."""
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())


def milliseconds(work: Work) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def in_turn(sides: dict[str, Work], repeats: int) -> dict[str, float]:
    """Return each side's median time."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    order = random.Random(1)
    for repeat in range(repeats + 3):
        for side in order.sample(list(sides), len(sides)):
            torch.cuda.synchronize()
            ms = milliseconds(sides[side])
            if repeat >= 3:
                times[side].append(ms)
    return {side: round(statistics.median(values), 4) for side, values in times.items()}


def row_of(name: str, replicas: int, repeats: int) -> dict[str, Any]:
    made = [torch.randn(shape, device="cuda") for shape in LISTS[name]()]
    lists = [[grad + k for grad in made] for k in range(replicas)]
    flat = _flatten_dense_tensors(made)
    standing = torch.empty_like(flat)
    native = _native.load()
    sides: dict[str, Work] = {
        "fused": lambda: ours(lists),
        "fused_bf16": lambda: ours(lists, torch.bfloat16),
        "norm": lambda: native.gradient_norms(made, 2),
        "stock": lambda: stock(lists),
        "copy": lambda: standing.copy_(flat),
    }
    size = flat.nbytes
    ms = in_turn(sides, repeats)
    moved = {"fused": replicas + 1, "fused_bf16": replicas + 1, "norm": 1, "copy": 2}
    gbps = {side: round(size * times / ms[side] / 1e6, 1) for side, times in moved.items()}
    return {
        "operation": "fused_reduce_add_coalesced",
        "device": torch.cuda.get_device_name(),
        "gradients": name,
        "bytes": size,
        "replicas": replicas,
        "launches": {side: launches(work) for side, work in sides.items()},
        "median_ms": ms,
        "moved_bytes": {side: size * times for side, times in moved.items()},
        "gbps": gbps,
        "share_of_copy": {side: round(rate / gbps["copy"], 3) for side, rate in gbps.items()},
        "times_faster_than_stock": round(ms["stock"] / ms["fused"], 2),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--repeats", type=int, default=30, help="rounds (default 30)")
    parser.add_argument("--lists", nargs="+", choices=list(LISTS), default=list(LISTS))
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("fused_reduce_cuda: there is no GPU to measure", file=sys.stderr)
        return 1
    writer = RecordWriter(chosen.json, sys.argv) if chosen.json else None
    for replicas in chosen.replicas:
        for name in chosen.lists:
            row = row_of(name, replicas, chosen.repeats)
            print(
                f"{name}, {row['bytes'] / 2**20:.0f} MiB, {replicas} replicas: median milliseconds"
            )
            for side, ms in row["median_ms"].items():
                text = f"  {side:12} {ms:9.3f}, {row['launches'][side]:4} launches"
                if side in row["gbps"]:
                    share = 100 * row["share_of_copy"][side]
                    text += f", {row['gbps'][side]:6.0f} GB/s, {share:4.0f} % of a copy"
                print(text)
            print(f"  fused: {row['times_faster_than_stock']} times faster than stock")
            if writer:
                writer.write(row)
    if writer:
        writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

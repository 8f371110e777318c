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

Times of the device and of the host are measured apart (fastcomm/_measure/device_time.py), the
sides in turn in another order in each round: `median_ms` is the device's, `host_ms` what a call
takes the host to queue. Bandwidth counts what must be moved: n sources and the result; twice the
bytes of a copy. Launches are the nodes of a graph that captures the call. With ``--device cpu``
everything runs on the CPU, to try the benchmark; its figures say nothing then."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from model_shapes import resnet50, transformer  # noqa: E402

from fastcomm import _native, comm  # noqa: E402
from fastcomm._measure.device_time import Work, columns, in_turn, launches  # noqa: E402
from fastcomm.bench.records import RecordWriter  # noqa: E402

LISTS = {"ResNet-50": resnet50, "12 transformer layers": transformer}
UNSCALE = 1 / 1024


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
    lists: list[list[torch.Tensor]], comm_dtype: torch.dtype | None = None
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
    """Return the same."""
    sums, result = comm.fused_reduce_add_coalesced(
        lists, average=True, scale=UNSCALE, comm_dtype=comm_dtype
    )
    return sums, result.total_norm


def row_of(name: str, replicas: int, repeats: int, device: str) -> dict[str, Any]:
    made = [torch.randn(shape, device=device) for shape in LISTS[name]()]
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
    times = columns(in_turn(sides, repeats, device))
    ms = times["median_ms"]
    moved = {"fused": replicas + 1, "fused_bf16": replicas + 1, "norm": 1, "copy": 2}
    gbps = {side: round(size * parts / ms[side] / 1e6, 1) for side, parts in moved.items()}
    return {
        "operation": "fused_reduce_add_coalesced",
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
        "gradients": name,
        "bytes": size,
        "replicas": replicas,
        "launches": {side: launches(work) for side, work in sides.items()},
        **times,
        "moved_bytes": {side: size * parts for side, parts in moved.items()},
        "gbps": gbps,
        "share_of_copy": {side: round(rate / gbps["copy"], 3) for side, rate in gbps.items()},
        "times_faster_than_stock": round(ms["stock"] / ms["fused"], 2),
    }


def text_of(row: dict[str, Any]) -> list[str]:
    """Return the lines that a row is printed as."""
    head = f"{row['gradients']}, {row['bytes'] / 2**20:.0f} MiB, {row['replicas']} replicas"
    lines = [f"{head}: median milliseconds of the device, and of the host"]
    for side, ms in row["median_ms"].items():
        text = f"  {side:12} {ms:9.3f} {row['host_ms'][side]:9.3f}"
        text += f", {100 * row['spread'][side]:3.0f} % spread"
        if row["launches"][side] is not None:
            text += f", {row['launches'][side]:4} launches"
        if side in row["gbps"]:
            share = 100 * row["share_of_copy"][side]
            text += f", {row['gbps'][side]:6.0f} GB/s, {share:4.0f} % of a copy"
        lines.append(text)
    return [*lines, f"  fused: {row['times_faster_than_stock']} times faster than stock"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--repeats", type=int, default=30, help="rounds (default 30)")
    parser.add_argument("--lists", nargs="+", choices=list(LISTS), default=list(LISTS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("fused_reduce_cuda: there is no GPU to measure", file=sys.stderr)
        return 1
    writer = RecordWriter(chosen.json, sys.argv) if chosen.json else None
    for replicas in chosen.replicas:
        for name in chosen.lists:
            row = row_of(name, replicas, chosen.repeats, chosen.device)
            print("\n".join(text_of(row)), flush=True)
            if writer:
                writer.write(row)
    if writer:
        writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

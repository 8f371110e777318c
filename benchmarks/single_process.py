"""The primitives of one process on CPU slots, against the same steps in plain torch.

    python benchmarks/single_process.py [--json results.jsonl] [--device cuda]

torch has no such path for the CPU, so the other side takes the steps that its code for CUDA
devices takes, by torch's own functions: flatten into buckets of 10 MiB, copy or add, unflatten.
With ``--device cuda`` the replicas share the first GPU. The other side takes the same steps there:
torch's own broadcast copies nothing to a device that has the tensors already. Both sides run in
turn, in one process, and give the same values; times are medians. Those of lists on a GPU are the
device's, and the host's apart (fastcomm/_measure/device_time.py); those of a training step are the
wall's.

"floor" is what moving the bytes costs alone: one flat tensor copied or added by torch into memory
that stands already.

A batch is cut into a chunk for each replica, and joined again: torch's side copies each chunk, and
calls ``torch.cat``, as its code for CUDA devices does. Chunks go to memory that stands already.

Lists: 3,000 tensors of 3,500 floats, and the parameters of ResNet-50 and of 12 transformer layers
of width 768. A training step of DataParallel is compared with the bare work of replicas that exist
already: what is beyond that is overhead.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._utils import (
    _flatten_dense_tensors,
    _reorder_tensors_as,
    _take_tensors,
    _unflatten_dense_tensors,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from model_shapes import resnet50, transformer  # noqa: E402

import fastcomm  # noqa: E402
from fastcomm import comm  # noqa: E402
from fastcomm._measure.device_time import columns  # noqa: E402
from fastcomm._measure.device_time import in_turn as in_turn_on_device  # noqa: E402
from fastcomm.bench.records import RecordWriter  # noqa: E402

try:
    from tqdm import tqdm
except ImportError:  # where a GPU is lent there may be torch alone

    def tqdm(rounds: Any, **_: Any) -> Any:
        return rounds


BUCKET = 10485760
Tensors = Sequence[torch.Tensor]


def many_small() -> list[list[int]]:
    return [[3500]] * 3000


LISTS = {"3000 x 3500": many_small, "ResNet-50": resnet50, "12 transformer layers": transformer}


def plain_broadcast(tensors: Tensors, replicas: int) -> list[list[torch.Tensor]]:
    outputs = [list(tensors), *([] for _ in range(replicas - 1))]
    for chunk in _take_tensors(tensors, BUCKET):
        flat = _flatten_dense_tensors(chunk)
        for output in outputs[1:]:
            output += [t.data for t in _unflatten_dense_tensors(flat.clone(), chunk)]
    if len({tensor.dtype for tensor in tensors}) > 1:  # buckets are of one dtype each
        outputs[1:] = [_reorder_tensors_as(output, tensors) for output in outputs[1:]]
    return outputs


def plain_reduce(lists: Sequence[Tensors]) -> list[torch.Tensor]:
    sums: list[torch.Tensor] = []
    for chunks in zip(*(_take_tensors(values, BUCKET) for values in lists), strict=True):
        first, second, *others = [_flatten_dense_tensors(chunk) for chunk in chunks]
        total = first + second
        for other in others:
            total.add_(other)
        sums += [t.data for t in _unflatten_dense_tensors(total, chunks[0])]
    return sums


class _PlainBroadcast(torch.autograd.Function):
    """torch's ``Broadcast``, by plain_broadcast and plain_reduce."""

    @staticmethod
    def forward(ctx: Any, devices: Sequence[int], *inputs: torch.Tensor) -> Any:
        ctx.count = len(inputs)
        return tuple(t for values in plain_broadcast(inputs, len(devices)) for t in values)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        lists = [grads[i : i + ctx.count] for i in range(0, len(grads), ctx.count)]
        return (None, *plain_reduce(lists))


def in_threads(work: Sequence[Callable[[], Any]]) -> list[Any]:
    results: list[Any] = [None] * len(work)

    def run(i: int) -> None:
        results[i] = work[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def plain_step(model: nn.Module, x: torch.Tensor, replicas: int) -> torch.Tensor:
    """Do what nn.DataParallel does: torch's own replicate, a thread for each replica, torch.cat."""
    functions = sys.modules["torch.nn.parallel._functions"]
    primitives = sys.modules["torch.nn.parallel.comm"]

    def detached(tensors: Tensors, devices: Sequence[int]) -> list[list[torch.Tensor]]:
        return plain_broadcast(tensors, len(devices))

    with (
        patch.object(functions, "Broadcast", _PlainBroadcast),
        patch.object(primitives, "broadcast_coalesced", detached),
    ):
        copies = torch.nn.parallel.replicate(model, list(range(replicas)))
    parts = x.chunk(replicas)
    return torch.cat(in_threads([partial(m, p) for m, p in zip(copies, parts, strict=True)]))


def small_layers() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(60):
        layers += [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    return nn.Sequential(*layers)


def wide_layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))


MODELS = {
    "60 small layers": (small_layers, (64, 64)),
    "12 layers of 1024": (wide_layers, (64, 1024)),
}


BATCHES = {"64 images": (64, 3, 224, 224)}


def in_turn(
    sides: dict[str, Callable[[], Any]], repeats: int, label: str
) -> dict[str, list[float]]:
    """Run the sides in turn; returns milliseconds of each round."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in tqdm(range(repeats + 2), desc=label, leave=False):
        for name, side in sides.items():
            start = time.perf_counter()
            result = side()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            del result
            if repeat >= 2:
                times[name].append(1e3 * seconds)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


def expect_copies(tensors: Tensors, sides: dict[str, Callable[[], Any]]) -> None:
    """Raise unless both sides copy to memory of its own all that is to be copied."""
    for side in ("torch", "fastcomm"):
        for values in sides[side]()[1:]:
            for value, tensor in zip(values, tensors, strict=True):
                if value.data_ptr() == tensor.data_ptr() or not torch.equal(value, tensor):
                    raise RuntimeError(f"{side} copies nothing, or wrong bits")


def expect_sums(sides: dict[str, Callable[[], Any]]) -> None:
    """Raise unless both sides sum the same; with more than two replicas in orders of their own."""
    for theirs, own in zip(sides["torch"](), sides["fastcomm"](), strict=True):
        torch.testing.assert_close(theirs, own)


def measure_lists(name: str, replicas: int, repeats: int, device: str) -> list[dict[str, Any]]:
    tensors = [torch.randn(shape, device=device) for shape in LISTS[name]()]
    lists = [[t + i for t in tensors] for i in range(replicas)]
    devices = [device] * replicas
    flat = _flatten_dense_tensors(tensors)
    standing = [torch.empty_like(flat) for _ in range(replicas)]

    def copy_all() -> None:
        for other in standing[1:]:
            other.copy_(flat)

    def add_all() -> None:
        torch.add(standing[0], standing[1], out=flat)
        for other in standing[2:]:
            flat.add_(other)

    sides: dict[str, dict[str, Callable[[], Any]]] = {
        "broadcast_coalesced": {
            "floor": copy_all,
            "torch": lambda: plain_broadcast(tensors, replicas),
            "fastcomm": lambda: comm.broadcast_coalesced(tensors, devices),
        },
        "reduce_add_coalesced": {
            "floor": add_all,
            "torch": lambda: plain_reduce(lists),
            "fastcomm": lambda: comm.reduce_add_coalesced(lists, device),
        },
    }
    size = sum(t.nbytes for t in tensors)
    expect_copies(tensors, sides["broadcast_coalesced"])
    expect_sums(sides["reduce_add_coalesced"])
    rows = [
        _row(operation, name, size, replicas, both, repeats, device)
        for operation, both in sides.items()
    ]
    comm.empty_cache()
    return rows


def measure_batch(name: str, replicas: int, repeats: int, device: str) -> list[dict[str, Any]]:
    batch = torch.randn(BATCHES[name], device=device)
    chunks = [torch.empty_like(chunk) for chunk in batch.chunk(replicas)]
    whole = torch.empty_like(batch)

    def copy_each() -> list[torch.Tensor]:
        parts = zip(chunks, batch.chunk(replicas), strict=True)
        return [chunk.copy_(part) for chunk, part in parts]

    sides: dict[str, dict[str, Callable[[], Any]]] = {
        "scatter": {
            "floor": lambda: whole.copy_(batch),
            "torch": copy_each,
            "fastcomm": lambda: comm.scatter(batch, out=chunks),
        },
        "gather": {
            "floor": lambda: whole.copy_(batch),
            "torch": lambda: torch.cat(chunks),
            "fastcomm": lambda: comm.gather(chunks, destination=device),
        },
    }
    rows = []
    for operation, both in sides.items():
        results = [both[side]() for side in ("torch", "fastcomm")]
        for result in results if operation == "gather" else map(torch.cat, results):
            if not torch.equal(result, batch):
                raise RuntimeError(f"{operation} has wrong bits")
        rows.append(_row(operation, name, batch.nbytes, replicas, both, repeats, device))
    comm.empty_cache()
    return rows


def _row(
    operation: str,
    name: str,
    size: int,
    replicas: int,
    sides: dict[str, Callable[[], Any]],
    repeats: int,
    device: str,
) -> dict[str, Any]:
    times = columns(in_turn_on_device(sides, repeats, device))
    ms = times["median_ms"]
    faster = round(ms["torch"] / ms["fastcomm"], 2)
    of = {"operation": operation, "tensors": name, "bytes": size, "replicas": replicas}
    return {**of, **times, "times_faster": faster}


def measure_step(name: str, replicas: int, repeats: int, device: str) -> dict[str, Any]:
    make, shape = MODELS[name]
    model = make().to(device)
    x = torch.randn(shape, device=device)
    bare = [copy.deepcopy(model) for _ in range(replicas)]
    parallel: Any = fastcomm.nn.parallel.DataParallel(model, [device] * replicas)
    stock: Any = partial(plain_step, model, x, replicas)

    def step_of(forward: Callable[[], torch.Tensor], modules: Sequence[nn.Module]) -> None:
        forward().sum().backward()
        with torch.no_grad():
            for module in modules:
                for parameter in module.parameters():  # as an optimizer would: all of them change
                    parameter.add_(1e-6)
                    parameter.grad = None

    parts = x.chunk(replicas)
    works = [partial(m, p) for m, p in zip(bare, parts, strict=True)]
    sides: dict[str, Callable[[], Any]] = {
        "bare": lambda: step_of(lambda: torch.cat(in_threads(works)), bare[:1]),
        "torch": lambda: step_of(stock, [model]),
        "fastcomm": lambda: step_of(lambda: parallel(x), [model]),
    }
    times = in_turn(sides, 3 * repeats, f"step of {name}, {replicas}")
    ms = medians(times)
    overhead = medians(  # of the differences in each round: the machine's pace changes
        {
            side: [own - bare for own, bare in zip(times[side], times["bare"], strict=True)]
            for side in ("torch", "fastcomm")
        }
    )
    return {
        "operation": "DataParallel step",
        "tensors": name,
        "bytes": sum(p.nbytes for p in model.parameters()),
        "replicas": replicas,
        "median_ms": ms,
        "overhead_ms": overhead,
        "overhead_ratio": round(overhead["fastcomm"] / overhead["torch"], 3),
    }


def host_text(row: dict[str, Any]) -> str:
    """Return the host's times, where they are not the device's."""
    host = row["host_ms"]
    if host == row["median_ms"]:
        return ""
    return f" [torch {host['torch']:.2f}, fastcomm {host['fastcomm']:.2f}]"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15, help="of each side (default 15)")
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--batches", nargs="*", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--lists", nargs="*", choices=list(LISTS), default=list(LISTS))
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    chosen = parser.parse_args(arguments)
    writer = RecordWriter(chosen.json, sys.argv) if chosen.json else None
    apart = "; of the host in brackets" if chosen.device == "cuda" else ""
    print(f"median milliseconds              replicas      torch   fastcomm{apart}")
    for replicas in chosen.replicas:
        how = (replicas, chosen.repeats, "cpu" if chosen.device == "cpu" else "cuda:0")
        rows = [row for name in chosen.batches for row in measure_batch(name, *how)]
        rows += [row for name in chosen.lists for row in measure_lists(name, *how)]
        rows += [measure_step(name, *how) for name in chosen.models]
        for row in rows:
            ms = row["median_ms"]
            print(f"{row['operation']} of {row['tensors']}, {row['bytes'] / 2**20:.0f} MiB")
            result = (
                f"{row['times_faster']} times faster; floor {ms['floor']:.2f}{host_text(row)}"
                if "times_faster" in row
                else f"bare {ms['bare']:.2f}; overhead {row['overhead_ratio']} of torch's"
            )
            print(f"{'':33}{replicas:8} {ms['torch']:10.2f} {ms['fastcomm']:10.2f}  {result}")
            if writer:
                writer.write(row)
    if writer:
        writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

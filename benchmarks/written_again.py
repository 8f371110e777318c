"""What it costs to let peers read a tensor where it lies: the call, and its owner's next write.

    python benchmarks/written_again.py [--json results.jsonl]

The same operations with the same data, through slots and in place (``fastcomm.empty`` and
FASTCOMM_READ_IN_PLACE_BYTES=0), interleaved. "call" is the operation on a tensor that nobody
has written to since the last call; "written" is ``tensor.fill_(x)`` and the operation, as in a
training: what peers have read is in two caches, and writing it again takes the longer the farther
they are from each other. Times are the longest of any rank; medians. all_reduce writes to peers'
tensors, and does not leave them in two caches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tabulate import tabulate
from tqdm import tqdm

import fastcomm
from fastcomm._commands import words
from fastcomm.bench.cases.base import all_gather_single, reduce_scatter_single
from fastcomm.bench.launch import launch
from fastcomm.bench.rank import Rank
from fastcomm.bench.records import RecordWriter
from fastcomm.bench.timing import max_over_ranks
from fastcomm.bench.units import format_size

WAYS = ("slots", "in place")
OPERATIONS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "scatter")
WARM_UP = 3


def _prepare(
    name: str, size: int, count: int, is_root: bool, shared: bool
) -> list[Callable[[], object]]:
    """Return the call, and the same behind a write to what the rank gives.

    ``count`` float32 are a rank's message; reduce_scatter, all_to_all and scatter take one for each
    rank.
    """
    empty = fastcomm.empty if shared else torch.empty
    in_parts = name in ("reduce_scatter", "all_to_all", "scatter")
    given = empty(size * count if in_parts else count).fill_(1)
    whole, part = torch.empty(size * count).fill_(0), torch.empty(count).fill_(0)
    chunks = list(given.chunk(size)) if is_root else None
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(given, op=dist.ReduceOp.AVG),
        "all_gather": lambda: all_gather_single(whole, given),
        "broadcast": lambda: dist.broadcast(given, 0),
        "reduce_scatter": lambda: reduce_scatter_single(part, given),
        "all_to_all": lambda: dist.all_to_all_single(whole, given),
        "scatter": lambda: dist.scatter(part, chunks, 0),
    }
    call = calls[name]
    writes = is_root or name not in ("broadcast", "scatter")

    def written() -> None:
        if writes:
            given.fill_(2)
        call()

    return [call, written]


def _time(call: Callable[[], object], times: list[int]) -> None:
    dist.barrier()
    start = time.perf_counter_ns()
    call()
    times.append(time.perf_counter_ns() - start)


def _measure(
    rank: Rank, sizes: list[int], operations: list[str], rounds: int
) -> list[dict[str, Any]]:
    os.environ["FASTCOMM_READ_IN_PLACE_BYTES"] = "0"
    os.environ["FASTCOMM_SEGMENT_MB"] = "8192"
    dist.init_process_group("fastcomm")
    assert dist.group.WORLD is not None
    rows = []
    points = [(name, nbytes) for name in operations for nbytes in sizes]
    for name, nbytes in tqdm(points, disable=None if rank.rank == 0 else True, leave=False):
        ways = {
            way: _prepare(name, rank.size, nbytes // 4, rank.rank == 0, way == "in place")
            for way in WAYS
        }
        times: dict[tuple[str, int], list[int]] = {(w, f): [] for w in WAYS for f in range(2)}
        for number in range(rounds):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                for form, call in enumerate(ways[way]):
                    batch: list[int] = []
                    for _ in range(WARM_UP + max(2, min(40, (64 << 20) // nbytes))):
                        _time(call, batch)
                    times[way, form] += batch[WARM_UP:]
        row: dict[str, Any] = {"op": name, "ranks": rank.size, "bytes": nbytes}
        for (way, form), each in times.items():
            longest = max_over_ranks(each, dist.group.WORLD)
            column = f"{way.replace(' ', '_')}{'_written' if form else ''}_us"
            row[column] = round(statistics.median(longest) / 1e3, 1)
        row["call_ratio"] = round(row["in_place_us"] / row["slots_us"], 2)
        row["written_ratio"] = round(row["in_place_written_us"] / row["slots_written_us"], 2)
        rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]], style: str) -> str:
    headers = ["operation", "message", "call: slots us", "in place", "ratio"]
    headers += ["written: slots us", "in place", "ratio"]
    columns = ["slots_us", "in_place_us", "call_ratio"]
    columns += ["slots_written_us", "in_place_written_us", "written_ratio"]
    body = [
        [row["op"], format_size(row["bytes"]), *(row[column] for column in columns)] for row in rows
    ]
    return str(tabulate(body, headers, tablefmt=style))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--sizes", type=words.sizes, default="64KiB,256KiB,1MiB,4MiB,8MiB,16MiB,32MiB,64MiB"
    )
    parser.add_argument("--ops", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--style", default="simple", help="of the table, as tabulate calls it")
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    chosen = parser.parse_args(arguments)
    rows = launch(_measure, chosen.ranks, chosen.sizes, chosen.ops, chosen.rounds, timeout_s=1200)[
        0
    ]
    print(_table(rows, chosen.style))
    if chosen.json:
        with RecordWriter(chosen.json, sys.argv) as writer:
            for row in rows:
                writer.write({"benchmark": "written_again", **row})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Operations over several hosts, beside Gloo as a whole: time, processor time, bounds of links.

    python benchmarks/hosts.py --json results.jsonl     # every shape and rate below
    python benchmarks/hosts.py --shapes 2x4 --rates 0 --ops all_reduce --sizes 64KiB
    python benchmarks/hosts.py --rates 0 --delays 500 --ops all_reduce --sizes 8,64KiB
    python benchmarks/hosts.py --show results.jsonl

Hosts are network namespaces of this machine at one switch (root, and the command `ip` of iproute2;
`tc` to limit their links), so all of them share its processors: without a limit, memory and
processors bound every time. Both groups have the same ranks, which call them in turn. A time is the
median of the slowest rank; processor time is that of all ranks, with two barriers of Gloo.
With a delay, a program stands for the switch and its cables (tests/cpp/delayed_wire.cpp), on the
same processors, and ranks begin calls at ticks of their common clock.
A fused reduction is that of a list with fastcomm, and `all_reduce` of one tensor with Gloo. A round
trip is of a message between two ranks of one host, of all such pairs at once.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.namespaces import (  # noqa: E402
    Host,
    delayed_hosts,
    switched_hosts,
    why_no_delay,
    why_no_switch,
)
from support.ranks import World, run_ranks  # noqa: E402
from support.stores import join_over  # noqa: E402

from fastcomm import fused_all_reduce_  # noqa: E402
from fastcomm._measure.units import format_size, parse_size  # noqa: E402
from fastcomm.bench.records import RecordWriter, read_records  # noqa: E402

ROUND_TRIP = "send and recv"  # for hosts of an even number of ranks
OPS = (
    "all_reduce", "reduce", "reduce_scatter_tensor", "all_gather_into_tensor", "broadcast",
    "all_to_all_single", "fused_all_reduce", "fused_all_reduce bfloat16", ROUND_TRIP,
    "barrier",
)  # fmt: skip
SHAPES = ("2x2", "2x4", "4x2", "4x1", "2x3")
TENSORS = 16  # of a fused reduction's list
PORT = 29400


@dataclass(frozen=True)
class Row:
    """One operation. ``bytes``: the larger of a rank's input and output; times in milliseconds."""

    shape: str
    rate: str  # of each host's link, "0": no limit
    op: str
    bytes: int
    fastcomm_ms: float
    gloo_ms: float
    fastcomm_cpu_ms: float
    gloo_cpu_ms: float
    bound_ms: float  # of fastcomm's way: what a host sends, over the rate; 0 without a limit
    delay_us: int = field(default=0, kw_only=True)  # of each frame between hosts, one way


@contextlib.contextmanager
def hosts_like(number: int, rate: str, delay_us: int = 0) -> Iterator[list[Host]]:
    """Create hosts whose links have a rate, ``"0"``: no limit, and a delay."""
    made = delayed_hosts(number, delay_us) if delay_us else switched_hosts(number)
    with made as hosts:
        for host in hosts if rate != "0" else []:
            limit = ["rate", rate, "burst", "128k", "limit", "4m"]
            command = ["tc", "qdisc", "add", "dev", host.interface, "root", "tbf", *limit]
            subprocess.run(host.command(*command), check=True)
        yield hosts


def calls(
    op: str, size: int, ranks: int, group: dist.ProcessGroup, fused: bool
) -> Callable[[], Any]:
    """Return a call of ``op`` whose larger tensor, or list, has ``size`` bytes.

    Args:
        op, size: as said.
        ranks: of the group.
        group: of them.
        fused: whether the group reduces lists, else one tensor of that size.
    """
    if op.startswith("fused"):
        wire = torch.bfloat16 if op.endswith("bfloat16") else None
        if not fused:
            return calls("all_reduce", size, ranks, group, fused)
        listed = list(torch.zeros(max(size // 4, 1)).chunk(TENSORS))
        return lambda: fused_all_reduce_(listed, group, comm_dtype=wire, norm_type=None)
    whole = torch.zeros(max(size // 4, ranks))
    whole = whole[: len(whole) // ranks * ranks]
    part, moved = torch.zeros(len(whole) // ranks), torch.zeros_like(whole)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce": lambda: dist.reduce(whole, 0, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(moved, whole, group=group),
        ROUND_TRIP: lambda: _round_trip(whole, moved, group),
        "barrier": lambda: dist.barrier(group=group),
    }[op]


def _round_trip(given: torch.Tensor, got: torch.Tensor, group: dist.ProcessGroup) -> None:
    rank = dist.get_rank(group)
    if rank % 2 == 0:
        dist.send(given, rank + 1, group)
    dist.recv(got, rank ^ 1, group)
    if rank % 2 == 1:
        dist.send(given, rank - 1, group)


def bound_ms(op: str, size: int, hosts: int, ranks: int, rate: str) -> float:
    """Return the least time of what the busiest host has to send, as operations are composed."""
    if rate == "0":
        return 0.0
    bits = float(rate.removesuffix("gbit")) * 1e9
    rest = (hosts - 1) / hosts
    factor = {
        "all_reduce": 1.0 if hosts == 2 else 2 * rest,
        "reduce_scatter_tensor": rest,
        "all_gather_into_tensor": rest,
        "reduce": 1.0,
        "broadcast": hosts - 1.0,
        "all_to_all_single": (ranks // hosts) * rest,
        ROUND_TRIP: 0.0,
        "barrier": 0.0,
    }[op.removeprefix("fused_").removesuffix(" bfloat16")]
    if op.endswith(" bfloat16"):
        factor /= 2
    return factor * size * 8 / bits * 1e3


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def join(world: World, hosts: list[Host], each: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Move to a rank's host and form both groups; return them, and the seconds that each took."""
    hosts[world.rank // each].enter()
    store = dist.TCPStore(hosts[0].address, PORT, world.size, world.rank == 0)
    begun = time.perf_counter()
    join_over(store, world)
    formed = time.perf_counter()
    gloo = dist.new_group(backend="gloo")
    seconds = {"fastcomm": formed - begun, "gloo": time.perf_counter() - formed}
    return {"fastcomm": dist.group.WORLD, "gloo": gloo}, seconds


def _begin_at_once(delay_us: int) -> None:
    """Wait for a tick of the clock that all hosts have in common.

    Ranks leave a barrier up to a delay apart, which is no part of the call that follows.
    """
    if delay_us:
        tick = max(10 * delay_us / 1e6, 5e-3)
        time.sleep(tick - time.monotonic() % tick)


def measure(
    world: World, hosts: list[Host], each: int, link: tuple[str, int], wanted: list[tuple[str, int]]
) -> list[Row]:
    """Measure on one rank, with the others; all get the rows. A link is a rate and a delay."""
    sides, _ = join(world, hosts, each)
    return measured(sides, len(hosts), each, link, wanted)


def measured(
    sides: dict[str, Any], hosts: int, each: int, link: tuple[str, int],
    wanted: list[tuple[str, int]],
) -> list[Row]:  # fmt: skip
    """Measure calls of groups of `join`."""
    rate, delay_us = link
    gloo, ranks = sides["gloo"], hosts * each
    rows = []
    for op, size in wanted:
        repeats = 31 if size < 1 << 20 else 9
        times: dict[str, list[float]] = {name: [] for name in sides}
        cpu = dict.fromkeys(sides, 0.0)
        made = {
            name: calls(op, size, ranks, group, name == "fastcomm") for name, group in sides.items()
        }
        for turn in range(repeats + 2):
            for name in sorted(sides, reverse=turn % 2 == 1):
                dist.barrier(group=gloo)
                _begin_at_once(delay_us)
                used, begun = _processor_seconds(), time.perf_counter()
                made[name]()
                spent = time.perf_counter() - begun
                dist.barrier(group=gloo)
                if turn >= 2:
                    times[name].append(spent * 1e3)
                    cpu[name] += (_processor_seconds() - used) * 1e3 / repeats
        slowest = torch.tensor([statistics.median(times[name]) for name in sides])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=gloo)
        used_by_all = torch.tensor(list(cpu.values()))
        dist.all_reduce(used_by_all, group=gloo)
        (ours, other), (our_cpu, other_cpu) = slowest.tolist(), used_by_all.tolist()
        bound = bound_ms(op, size, hosts, ranks, rate)
        figures = (round(value, 3) for value in (ours, other, our_cpu, other_cpu, bound))
        rows.append(Row(f"{hosts}x{each}", rate, op, size, *figures, delay_us=delay_us))
    return rows


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of every shape, rate and delay."""
    wanted = [(op, size) for op in options.ops for size in options.sizes if op != "barrier"]
    wanted += [("barrier", 0)] * ("barrier" in options.ops)
    for shape in options.shapes:
        number, each = map(int, shape.split("x"))
        for link in itertools.product(options.rates, options.delays):
            here = [one for one in wanted if one[0] != ROUND_TRIP or each % 2 == 0]
            with hosts_like(number, *link) as hosts:
                found = run_ranks(number * each, measure, hosts, each, link, here)
            yield from found[0]


def is_wanted(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Tell whether a row is among those that the options ask for."""
    sized = row["op"] == "barrier" or row["bytes"] in options.sizes
    asked = {"shape": options.shapes, "rate": options.rates, "op": options.ops}
    asked["delay_us"] = options.delays
    return sized and all(row[name] in values for name, values in asked.items())


def show(rows: list[dict[str, Any]], style: str) -> str:
    """Return the table of rows."""
    from tabulate import tabulate

    def line(row: dict[str, Any]) -> list[str]:
        ours, gloo = row["fastcomm_ms"], row["gloo_ms"]
        over = f"{ours / row['bound_ms']:.2f}" if row["bound_ms"] >= 1 else ""
        processors = row["fastcomm_cpu_ms"] / row["gloo_cpu_ms"]
        link = "no limit" if row["rate"] == "0" else row["rate"].replace("gbit", " Gbit/s")
        if row["delay_us"]:
            link += f", {row['delay_us'] / 1e3:g} ms one way"
        size = format_size(row["bytes"]) if row["bytes"] else ""
        times = [f"{ours:.2f}", f"{gloo:.2f}", f"{gloo / ours:.2f}", over, f"{processors:.2f}"]
        return [row["shape"].replace("x", " x "), link, row["op"], size, *times]

    headers = ["hosts x ranks", "link", "operation", "size", "fastcomm ms", "Gloo ms"]
    headers += ["times faster", "over the bound", "processor time"]
    align = ["left"] * 4 + ["right"] * 5
    body = [line(row) for row in rows]
    return str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))


def main(arguments: list[str] | None = None) -> int:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        return lambda text: [kind(word) for word in text.split(",")]

    parser.add_argument("--shapes", type=listed(str), default=list(SHAPES), help="hosts x ranks")
    parser.add_argument("--rates", type=listed(str), default=["0", "1gbit"], help="0: no limit")
    parser.add_argument(
        "--delays", type=listed(int), default=[0], help="between hosts, microseconds one way"
    )
    parser.add_argument("--ops", type=listed(str), default=list(OPS))
    parser.add_argument(
        "--sizes", type=listed(parse_size), default=[8, 64 << 10, 1 << 20, 25 << 20]
    )
    parser.add_argument("--json", type=Path, help="file of records to create")
    parser.add_argument("--show", type=Path, help="records to show instead of measuring")
    parser.add_argument("--style", default="simple", help="of the table: simple, github, ...")
    options = parser.parse_args(arguments)
    if options.show is not None:
        read = ({"delay_us": 0, **row} for row in read_records(options.show).rows)  # older ones
        rows = [row for row in read if is_wanted(row, options)]
        print(show(rows, options.style))
        return 0
    reason = why_no_switch() or (why_no_delay() if any(options.delays) else None)
    if reason is not None:
        print(f"hosts.py: {reason}", file=sys.stderr)
        return 1
    rows = []
    writer = None if options.json is None else RecordWriter(options.json, sys.argv)
    for row in run(options):
        rows.append(asdict(row))
        if writer is not None:
            writer.write(rows[-1])
    print(show(rows, options.style))
    return 0


if __name__ == "__main__":
    sys.exit(main())

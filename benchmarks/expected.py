"""Predicted times of operations between GPUs, from links, launches and the bytes that are moved.

Nobody has measured these machines. A machine's figures are its vendor's, or assumed; what a launch
costs is from the record of two ranks on one H100, which the model has to meet (a test looks)::

    python benchmarks/expected.py --json benchmarks/results/expected.jsonl    # makes them
    python benchmarks/expected.py --table benchmarks/results/expected.jsonl

An operation is rounds of launches (docs/launches.md), one after the other: copies into a window, a
meeting, the work over links, a meeting, copies out of it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastcomm._measure.units import format_size

SIZES = (8, 64 << 10, 1 << 20, 25 << 20, 256 << 20)
AREA = 16 << 20  # FASTCOMM_WINDOW_BYTES
SHORT = 64 << 10  # FASTCOMM_ONE_SHOT_BYTES
SLICED = 256 << 10  # a broadcast of more than two ranks goes in slices from here on
# benchmarks/results/h100-2-ranks-shared.jsonl, 256 KiB: 23.1, 19.2, 15.7 us for 6, 5, 4 launches.
LAUNCH_US = 3.6
SHORT_US = 5.8  # same, 1 KiB: 5.3 to 7.2 us


@dataclass(frozen=True)
class Machine:
    """One kind of machine.

    Attributes:
        name: with its number of GPUs.
        card: a pattern that is in its GPUs' names.
        ranks: how many GPUs it has.
        link_gbs: bandwidth of a GPU to and from all others, each way; to the host, if `by_host`.
        memory_gbs: of a GPU's own memory, what is read and written together.
        flag_us: from a rank's flag to its sight by another.
        short_gbs: what one block reads of other ranks' memory.
        by_host: windows lie in the host's memory.
        host_gbs: of the host's memory, for all GPUs together.
    """

    name: str
    card: str
    ranks: int
    link_gbs: float
    memory_gbs: float
    flag_us: float
    short_gbs: float
    by_host: bool = False
    host_gbs: float = math.inf


# Links carry 0.8 of what vendors name, memory 0.85 (assumed; 0.8 to 0.9 is what copies reach).
# Flags take 1 us over NVLink, 1.5 over PCIe, 2 through the host's memory (assumed).
MACHINES = (
    # NVIDIA H100 SXM data sheet: NVLink 900 GB/s, both ways together. Memory: measured, 3.0 TB/s.
    Machine("8 x H100, NVSwitch", "H100|H200", 8, 0.8 * 450, 0.85 * 3000, 1.0, 20.0),
    # PCIe 4.0 x16: 31.5 GB/s each way. GeForce RTX 4090: memory 1008 GB/s, no access to peers.
    # A host of eight channels of DDR4-3200: 204.8 GB/s.
    Machine(
        *("4 x RTX 4090, pinned", "RTX 4090", 4, 0.8 * 31.5, 0.85 * 1008, 2.0, 10.0),
        by_host=True,
        host_gbs=0.75 * 204.8,
    ),
    # NVIDIA RTX A6000 data sheet: NVLink bridge 112.5 GB/s, both ways together; memory 768 GB/s.
    Machine("2 x RTX A6000, bridge", "RTX A6000", 2, 0.8 * 56.25, 0.85 * 768, 1.0, 20.0),
    # The same over PCIe 4.0 x16, where GPUs reach each other through one root complex.
    Machine("2 x RTX A6000, PCIe", "RTX A6000", 2, 0.8 * 31.5, 0.85 * 768, 1.5, 10.0),
)
# Both ranks on one GPU, whose memory is also the link: each byte is read and written there.
SHARED = Machine("1 x H100, shared", "", 2, 0.85 * 750, 0.85 * 1500, 0.0, 25.0)


@dataclass(frozen=True)
class Plan:
    """What the busiest rank does, in bytes, and its launches.

    ``up`` and ``down`` are from and to a GPU over its link: by the host to and from its memory.
    """

    stage: float  # copied into the window
    down: float
    up: float
    fetch: float  # copied out of the window
    launches: tuple[int, int]  # of the first round, of each further one
    own: float = 0.0  # copied within the GPU meanwhile
    host: float = 0.0  # to and from the host's memory, for all ranks together
    part: float = 1.0  # of the bytes, what has to fit into an area
    gives: float = 1.0  # of the bytes, what one rank reads of one other in one launch
    one_giver: bool = False
    factor: float = 1.0  # of bus bandwidth


def plans(n: int, by_host: bool = False, sliced: bool = False) -> dict[str, Plan]:
    """Return the plan of each operation of n ranks, on ordinary tensors but for one."""
    own = 1 / n
    rest = (n - 1) / n

    def link(down: float, up: float, host_down: float, host_up: float = 0.0) -> tuple[float, float]:
        return (host_down, host_up) if by_host else (down, up)

    # A sum: each rank reduces a slice of all inputs, for all; the host's memory gets it once.
    six, five = (6, 4), (5, 4)
    found = {
        "all_reduce": Plan(
            *(1.0, *link(2 * rest, 2 * rest, 1.0, own), 1.0), six, host=3 * n + 1, factor=2 * rest
        ),
        "reduce": Plan(*(1.0, *link(2 * rest, rest, 1.0, own), 1.0), six, host=2 * n + 2),
        "reduce_scatter_tensor": Plan(
            *(1.0, *link(rest, rest, 1.0), 0.0), five, host=2 * n, gives=own, factor=rest
        ),
        "all_gather_into_tensor": Plan(
            *(own, *link(rest, rest, rest), 0.0), five, own, n, part=own, gives=own, factor=rest
        ),
        "broadcast": Plan(*(1.0, *link(1.0, n - 1.0, 1.0), 0.0), (4, 3), host=n, one_giver=True),
        "gather": Plan(
            *(own, *link(rest, 0.0, rest), 0.0), five, own, 2, part=own, gives=own, factor=rest
        ),
        "scatter": Plan(
            *(1.0, *link(own, rest, own), 0.0), five, own, host=2, gives=own, factor=rest
        ),
        "all_to_all_single": Plan(  # of pairs, so never in one launch
            *(rest, *link(rest, rest, rest), 0.0), six, own, 2 * n - 2, gives=math.inf, factor=rest
        ),
    }
    if sliced and n > 2 and not by_host:
        # Each slice goes once to its rank, and from there to all but the root.
        twice = 2 * rest
        found["broadcast"] = Plan(1.0, twice, twice, 0.0, five, own, one_giver=True)
    if not by_host:  # else nothing is used in place
        found["all_reduce_shared"] = Plan(0.0, 2 * rest, 2 * rest, 0.0, (4, 3), factor=2 * rest)
    return found


def predict(machine: Machine, op: str, nbytes: int, ranks: int | None = None) -> dict[str, Any]:
    """Return the time of an operation on ordinary tensors, and what it consists of.

    ``op`` and ``nbytes`` are as in `fastcomm bench`: ``all_reduce_shared`` is in place, bytes are
    those of the gathered result, or of what one rank gives.
    """
    n = ranks or machine.ranks
    plan = plans(n, machine.by_host, nbytes >= SLICED)[op]
    reads = plan.gives * nbytes * (1 if plan.one_giver else n)
    if reads <= SHORT:
        rounds, launches = 1, 1
        time_us = SHORT_US + 2 * machine.flag_us + reads / machine.short_gbs / 1e3
    else:
        rounds = max(1, math.ceil(nbytes * plan.part / AREA))
        launches = plan.launches[0] + (rounds - 1) * plan.launches[1]
        moved = _moved(machine, plan, rounds) * nbytes / 1e3  # ns a byte
        time_us = launches * LAUNCH_US + 2 * rounds * machine.flag_us + moved
    gbs = nbytes / time_us / 1e3
    return {
        "op": op,
        "bytes": nbytes,
        "ranks": n,
        "time_us": round(time_us, 1),
        "algbw_gbs": round(gbs, 2),
        "busbw_gbs": round(gbs * plan.factor, 2),
        "launches": launches,
        "rounds": rounds,
    }


def _moved(machine: Machine, plan: Plan, rounds: int) -> float:
    """Return the nanoseconds for each byte of a message that is not short."""
    if not machine.by_host:
        within = 2 * (plan.stage + plan.own + plan.fetch) / machine.memory_gbs
        return within + max(plan.down, plan.up) / machine.link_gbs
    # A round's results come down in the launch in which the next one's data goes up.
    beside = (rounds - 1) / rounds * min(plan.stage, plan.fetch)
    by_link = (plan.stage + plan.fetch - beside + max(plan.down, plan.up)) / machine.link_gbs
    return max(by_link, plan.host / machine.host_gbs)


def records() -> list[dict[str, Any]]:
    """Return the environment's line, with the constants, and a row for each prediction."""
    constants = {"launch_us": LAUNCH_US, "short_us": SHORT_US, "area_bytes": AREA}
    head: dict[str, Any] = {"type": "environment", "schema": 1, "kind": "predicted", **constants}
    head["machines"] = [asdict(machine) for machine in MACHINES]
    for machine in head["machines"]:
        machine["host_gbs"] = machine["host_gbs"] if machine["by_host"] else None
    rows = [
        {"type": "row", "kind": "predicted", "machine": machine.name, **predict(machine, op, size)}
        for machine in MACHINES
        for op in plans(machine.ranks, machine.by_host)
        for size in SIZES
    ]
    return [head, *rows]


def table(rows: Sequence[dict[str, Any]], style: str) -> str:
    """Return a table: an operation of a size in each row, a column for each machine."""
    from tabulate import tabulate

    names = list(dict.fromkeys(row["machine"] for row in rows))
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        text = f"{row['time_us']:.{int(row['time_us'] < 100)}f} µs"
        if row["bytes"] >= 1 << 20:
            text += f", {row['busbw_gbs']:.3g} GB/s"
        cells.setdefault((row["op"], row["bytes"]), {})[row["machine"]] = text
    body = [
        [
            op.replace("_shared", ", in place"),
            format_size(size),
            *(of.get(name, "") for name in names),
        ]
        for (op, size), of in cells.items()
    ]
    heads = ["predicted", "size", *names]
    return str(tabulate(body, heads, tablefmt=style, disable_numparse=True))


def machines_like(device: str, gpus: int, ranks: int) -> list[Machine]:
    """Return the machines of such GPUs; none if ranks share one."""
    if gpus < ranks:
        return []
    return [machine for machine in MACHINES if re.search(machine.card, device)]


def beside(rows: Sequence[dict[str, Any]], device: str, gpus: int) -> list[str]:
    """Return lines with what `fastcomm bench` has measured on GPUs, and what was predicted."""
    lines = []
    for row in rows:
        if row.get("backend") != "fastcomm" or "median_us" not in row:
            continue
        for machine in machines_like(device, gpus, row["ranks"]):
            if row["op"] not in plans(row["ranks"], machine.by_host):
                continue
            wanted = predict(machine, row["op"], row["bytes"], row["ranks"])["time_us"]
            lines.append(
                f"{row['op']} of {format_size(row['bytes'])}, {row['ranks']} ranks:"
                f" {row['median_us']:.1f} us, predicted {wanted:.1f}"
                f" ({row['median_us'] / wanted:.2f} of it; {machine.name})"
            )
    shared = " that ranks share" if rows and gpus < rows[0]["ranks"] else ""
    return lines or [f"nothing is predicted for {gpus} x {device}{shared}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the predictions")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print them as a table")
    parser.add_argument("--style", default="simple", help="of tables")
    options = parser.parse_args(arguments)
    if options.json:
        options.json.write_text("".join(json.dumps(record) + "\n" for record in records()))
    if options.table:
        found = [json.loads(line) for line in options.table.read_text().splitlines()]
        print(table([row for row in found if row["type"] == "row"], options.style))
    return 0


if __name__ == "__main__":
    sys.exit(main())

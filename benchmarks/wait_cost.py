"""Processor time that waiting costs: one of two ranks comes late to each call, the other waits.

    python benchmarks/wait_cost.py --json benchmarks/results/wait-cost.jsonl
    python benchmarks/wait_cost.py --show benchmarks/results/wait-cost.jsonl

Two ranks, each bound to cores of its own, call a prepared ``all_reduce`` of 8 bytes. Rank 1 sleeps
before each call, which costs no core; rank 0 waits in it. Of each call of rank 0:

    share         the processor time of its process, user and system, over the time of the call
    result after  from the arrival of rank 1 to the moment when rank 0 has the result
    beside        the same, while another process keeps the cores of rank 0 busy

Both are medians over the calls of all rounds. ``FASTCOMM_SPIN_US`` is read once, so each value has
processes of its own in each round. Rounds go through values and delays forwards and backwards by
turns. The ranks' stamps are comparable: both read CLOCK_MONOTONIC of one machine. A sleep takes
some microseconds longer than it should, and rank 0 comes from the call before when it has woken up:
`came_late_us` in the record is what rank 1 came later than rank 0.

What else runs on the machine is in the figures, as the busy process shows: a rank that yields to it
gets its core back a slice of the scheduler later, some milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import fastcomm  # noqa: E402
from fastcomm._machine import division, topology  # noqa: E402
from fastcomm._measure.stats import percentile  # noqa: E402
from fastcomm.bench.records import RecordWriter, read_records  # noqa: E402

RANKS = 2
BYTES = 8
DEFAULT = -1  # of FASTCOMM_SPIN_US
SPINS_US = (DEFAULT, 0, 2000)
LATE_US = (20, 200, 2000, 20_000)
MOST_CALLS = 500  # of a batch
_WARM_UP = 3
_PR_SET_TIMERSLACK = 29

Row = dict[str, Any]


@dataclass(frozen=True)
class Wait:
    """A call of rank 0: when it began and ended, and the processor time that it took."""

    begun_ns: int
    ended_ns: int
    used_ns: int


def calls_within(seconds: float, late_us: int) -> int:
    """Return how many calls a batch has, which is the same on both ranks."""
    return max(5, min(MOST_CALLS, int(seconds * 1e6 / late_us)))


def _wait(call: Callable[[], Any]) -> Wait:
    # Either clock's interval has one reading of the other in it.
    begun = time.monotonic_ns()
    used = time.process_time_ns()
    call()
    ended = time.monotonic_ns()
    return Wait(begun, ended, time.process_time_ns() - used)


def _come_late(call: Callable[[], Any], late_us: int) -> int:
    time.sleep(late_us / 1e6)
    arrived = time.monotonic_ns()
    call()
    return arrived


def batches_of(delays_us: Sequence[int], seconds: float) -> list[list[Any]]:
    """Return for each delay what this rank saw of its calls: waits, or moments of arrival."""
    torch.set_num_threads(1)
    # Else the kernel makes each sleep up to 50 us longer, to wake several sleepers at once.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
    call = fastcomm.prepare("all_reduce", torch.zeros(BYTES // 4))
    is_late = dist.get_rank() == 1
    batches: list[list[Any]] = []
    for late_us in delays_us:
        dist.barrier()
        count = _WARM_UP + calls_within(seconds, late_us)
        seen = [_come_late(call, late_us) if is_late else _wait(call) for _ in range(count)]
        batches.append(seen[_WARM_UP:])
    return batches


@dataclass(frozen=True)
class Batch:
    """Figures of the calls of one batch."""

    shares: list[float]
    late_us: list[float]
    wake_us: list[float]


def batch_of(waits: Sequence[Wait], arrivals_ns: Sequence[int]) -> Batch:
    pairs = list(zip(waits, arrivals_ns, strict=True))
    return Batch(
        [wait.used_ns / (wait.ended_ns - wait.begun_ns) for wait in waits],
        [(arrived - wait.begun_ns) / 1e3 for wait, arrived in pairs],
        [(wait.ended_ns - arrived) / 1e3 for wait, arrived in pairs],
    )


@contextlib.contextmanager
def busy_beside(is_busy: bool) -> Iterator[None]:
    """Keep the cores of rank 0 busy, if that is asked for."""
    own = division.divide(topology.cpus(), RANKS, topology.quota())[0].cpus
    loop = f"import os\nos.sched_setaffinity(0, {set(own)})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", loop]) for _ in own if is_busy]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def row_of(spin_us: int, late_us: int, is_busy: bool, batches: Sequence[Batch]) -> Row:
    """Return what is written of one value and one delay."""
    shares, came_us, wake_us = (
        list(itertools.chain.from_iterable(getattr(batch, name) for batch in batches))
        for name in ("shares", "late_us", "wake_us")
    )
    return {
        "operation": "all_reduce",
        "bytes": BYTES,
        "ranks": RANKS,
        "spin_us": spin_us,
        "late_us": late_us,
        "is_busy": is_busy,
        "calls": len(shares),
        "share": round(statistics.median(shares), 4),
        "came_late_us": round(statistics.median(came_us), 1),
        "wake_median_us": round(statistics.median(wake_us), 2),
        "wake_p99_us": round(percentile(wake_us, 99), 2),
        "batch_share": [round(statistics.median(batch.shares), 4) for batch in batches],
        "batch_wake_us": [round(statistics.median(batch.wake_us), 2) for batch in batches],
    }


def run(
    spins_us: Sequence[int], delays_us: Sequence[int], rounds: int, seconds: float
) -> Iterator[Row]:
    """Yield the rows of every value and delay, once all rounds are done."""
    batches: dict[tuple[int, int, bool], list[Batch]] = {
        key: [] for key in itertools.product(spins_us, delays_us, (False, True))
    }
    for number in range(rounds):
        step = 1 if number % 2 == 0 else -1
        delays = delays_us[::step]
        for is_busy, spin_us in itertools.product((False, True), spins_us[::step]):
            environment = {"FASTCOMM_SPIN_US": str(spin_us)}
            with busy_beside(is_busy):
                waited, came = fastcomm.launch(
                    batches_of,
                    (delays, seconds),
                    ranks=RANKS,
                    bind=True,
                    env=environment,
                    timeout=60,
                )
            for late_us, *seen in zip(delays, waited, came, strict=True):
                batches[spin_us, late_us, is_busy].append(batch_of(*seen))
    for key, found in batches.items():
        yield row_of(*key, found)


def table(rows: Sequence[Row], style: str) -> str:
    """Return a table with a line for each delay."""
    from tabulate import tabulate

    spins = list(dict.fromkeys(row["spin_us"] for row in rows))
    lines = []
    for late_us in dict.fromkeys(row["late_us"] for row in rows):
        found = {(row["spin_us"], row["is_busy"]): row for row in rows if row["late_us"] == late_us}
        shares = [f"{100 * found[spin, False]['share']:.0f} %" for spin in spins]
        wakes = [
            f"{found[spin, is_busy]['wake_median_us']:.{0 if is_busy else 1}f}"
            for is_busy in (False, True)
            for spin in spins
        ]
        lines.append([f"{late_us / 1e3:g}", *shares, *wakes])
    names = ["default" if spin == DEFAULT else str(spin) for spin in spins]
    headers = ["late by [ms]"]
    for what in ("share", "result after [µs]", "beside [µs]"):
        headers += [f"{what}, {name}" for name in names]
    align = ["right"] * len(headers)
    return str(tabulate(lines, headers, tablefmt=style, colalign=align, disable_numparse=True))


def why_not() -> str:
    """Return why this machine cannot measure it; empty if it can."""
    first, second = division.divide(topology.cpus(), RANKS, topology.quota())
    return "the ranks need a core each" if set(first.cpus) & set(second.cpus) else ""


def main(arguments: list[str] | None = None) -> int:
    """Measure, or show a record."""

    def listed(text: str) -> list[int]:
        return [DEFAULT if word == "default" else int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--spins", type=listed, default=list(SPINS_US), help="microseconds (default,0,2000)"
    )
    parser.add_argument(
        "--late", type=listed, default=list(LATE_US), help="microseconds (20,200,2000,20000)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=0.6, help="of each delay in a round (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    parser.add_argument("--show", type=Path, help="a record to show instead")
    parser.add_argument("--style", default="simple", help="of the table: simple, github, ...")
    chosen = parser.parse_args(arguments)
    if chosen.show is not None:
        print(table(read_records(chosen.show).rows, chosen.style))
        return 0
    if reason := why_not():
        print(f"wait_cost.py: {reason}", file=sys.stderr)
        return 1
    words = ["benchmarks/wait_cost.py", *(sys.argv[1:] if arguments is None else arguments)]
    writer = RecordWriter(chosen.json, words) if chosen.json else None
    rows = []
    for row in run(chosen.spins, chosen.late, chosen.rounds, chosen.seconds):
        rows.append(row)
        if writer:
            writer.write(row)
    if writer:
        writer.close()
    print(table(rows, chosen.style))
    return 0


if __name__ == "__main__":
    sys.exit(main())

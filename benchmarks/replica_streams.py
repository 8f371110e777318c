"""What streams of random numbers cost replicas that draw nothing, on CPU slots.

    python benchmarks/replica_streams.py [--json results.jsonl]

A forward and backward pass of a small DataParallel, with the replicas' streams and with a stand-in
that does nothing, in turns within one process; and what a pass without replicas takes alone. The
claim is that a model that draws nothing is at most 1 % slower.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import fastcomm  # noqa: E402
from fastcomm.bench.records import RecordWriter  # noqa: E402

CLAIM = 1.01
parallel_apply: Any = importlib.import_module("fastcomm.nn.parallel.parallel_apply")


class _Nothing:
    """Stands for a pass, and does nothing."""

    def enter(self, part: int) -> None: ...
    def leave(self) -> None: ...
    def settle(self) -> None: ...


def microseconds(work: Callable[[], object], repeats: int) -> float:
    """Time of one call of ``work``."""
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begun) / repeats * 1e6


def alone(begin: Callable[[], Any]) -> None:
    """Two parts enter and leave, and nobody computes."""
    numbers = begin()
    for part in range(2):
        numbers.enter(part)
        numbers.leave()
    numbers.settle()


def main() -> int:
    """Measure; exit status 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100, help="turns of each (default 100)")
    parser.add_argument("--json", type=Path, help="write a row here; the file must not exist")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = fastcomm.nn.parallel.DataParallel(torch.nn.Sequential(*layers), ["cpu", "cpu"])
    x = torch.randn(64, 256)

    def step() -> None:
        model(x).sum().backward()

    streams = parallel_apply.begin_pass
    nothing = _Nothing()
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(arguments.rounds + 3):
        for on in (True, False) if turn % 2 else (False, True):
            parallel_apply.begin_pass = streams if on else lambda: nothing
            taken = microseconds(step, 20)
            if turn >= 3:
                times[on].append(taken)
    ratios = [a / b for a, b in zip(times[True], times[False], strict=True)]
    row: dict[str, Any] = {
        "benchmark": "replica_streams",
        "with_us": statistics.median(times[True]),
        "without_us": statistics.median(times[False]),
        "ratio": statistics.median(ratios),
        "pass_alone_us": statistics.median(
            microseconds(lambda: alone(streams), 2000) for _ in range(11)
        ),
    }
    print(
        f"step with streams {row['with_us']:,.0f} µs, without {row['without_us']:,.0f} µs, "
        f"median of {arguments.rounds} ratios {row['ratio']:.4f}; a pass alone "
        f"{row['pass_alone_us']:.2f} µs"
    )
    if arguments.json:
        writer = RecordWriter(arguments.json, sys.argv)
        writer.write(row)
        writer.close()
    return 0 if row["ratio"] <= CLAIM else 1


if __name__ == "__main__":
    sys.exit(main())

"""Play many random schedules with faults, judge each, and sum up.

make soak ARGS="--schedules 5000 --seed 1 --summary soak.json"
make soak ARGS="--replay 1234 --times 20"
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.errors_oracle import lateness
from faults.generate import make_schedule
from faults.oracle import judge
from faults.pool import Lane
from faults.report import Run
from faults.schedule import CONFIGURATIONS, Schedule
from tqdm import tqdm

from fastcomm._commands import env


@dataclass
class Summary:
    """The outcome of many runs."""

    schedules: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    operations: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    hangs: list[int] = field(default_factory=list)
    failures: dict[int, list[str]] = field(default_factory=dict)  # by the schedule's seed
    delays: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    remains: list[str] = field(default_factory=list)

    def add(self, run: Run, wrong: list[str]) -> None:
        self.schedules += 1
        self.faults[run.schedule.fault.kind] += 1
        self.sizes[run.schedule.size] += 1
        if run.hung:
            self.hangs.append(run.schedule.seed)
        if wrong:
            self.failures[run.schedule.seed] = wrong
        for rank, ended in run.ended.items():
            self.operations += len(ended.results)
            for group in range(len(run.schedule.groups)):
                failed = [r for r in ended.results if r.group == group and r.error is not None]
                if not failed:
                    continue
                assert failed[0].error is not None
                kind = failed[0].error.kind
                self.errors[kind] += 1
                if (delay := lateness(run, rank, failed[0])) is not None:
                    self.delays.setdefault(kind, []).append(delay)

    def as_json(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            "arguments": arguments,
            "schedules": self.schedules,
            "seconds": round(self.seconds, 1),
            "faults": dict(sorted(self.faults.items())),
            "ranks": {str(size): count for size, count in sorted(self.sizes.items())},
            "operations on all ranks": self.operations,
            "hangs": self.hangs,
            "wrong answers": sum(
                "a wrong result" in str(wrong) for wrong in self.failures.values()
            ),
            "failures": {str(seed): wrong for seed, wrong in self.failures.items()},
            "left behind": self.remains,
            "errors (the first of each rank and group)": dict(sorted(self.errors.items())),
            "seconds from fault, or deadline, to error": {
                kind: _spread(values) for kind, values in sorted(self.delays.items())
            },
            "environment": {**env.collect(), "load": os.getloadavg()},
        }


def _spread(values: list[float]) -> dict[str, float | int]:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered), 6),
        "p99": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 6),
        "worst": round(ordered[-1], 6),
    }


def _seen() -> set[str]:
    """Return the files in /dev/shm with fastcomm's name, of any process.

    Its sockets and other memory end with their process.
    """
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "fastcomm" in name}


def _left(before: set[str], patience: float = 60.0) -> list[str]:
    """Return files that are not in ``before`` and stay for ``patience`` seconds.

    Files of groups that other processes form meanwhile do not stay.
    """
    deadline = time.monotonic() + patience
    found = _seen() - before
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found &= _seen()
    return sorted(found)


def soak(schedules: list[Schedule], lanes: int, report: Any = None) -> Summary:
    """Play schedules, on ``lanes`` lanes of `faults.pool` per configuration at a time."""
    summary = Summary()
    before = _seen()
    start = time.monotonic()
    lock = threading.Lock()
    waiting = {name: queue.SimpleQueue[Schedule]() for name in CONFIGURATIONS}
    for schedule in schedules:
        waiting[schedule.configuration].put(schedule)

    def drive(configuration: str) -> None:
        lane = Lane(configuration)
        try:
            while True:
                try:
                    schedule = waiting[configuration].get_nowait()
                except queue.Empty:
                    return
                run = lane.play(schedule)
                wrong = judge(run) + lane.growth()
                with lock:
                    summary.add(run, wrong)
                    if report is not None:
                        report(run, wrong)
        finally:
            left = lane.close()
            with lock:
                summary.remains += left

    threads = [
        threading.Thread(target=drive, args=(name,))
        for name in CONFIGURATIONS
        for _ in range(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary.remains += _left(before)
    summary.seconds = time.monotonic() - start
    return summary


def _report(bar: Any) -> Any:
    def report(run: Run, wrong: list[str]) -> None:
        bar.update()
        if wrong:
            text = "\n  ".join(wrong)
            fault = run.schedule.fault
            ranks = f"{run.schedule.size} ranks"
            bar.write(f"seed {run.schedule.seed}, {ranks}, {fault}:\n  {text}{run.evidence}")

    return report


def show(schedule: Schedule) -> Iterator[str]:
    """Yield a schedule as text.

    After a rank, "a" is asynchronous, "s" is synchronous, and "m" is in shared memory.
    """
    yield f"seed {schedule.seed}: {schedule.size} ranks, {schedule.configuration}, {schedule.fault}"
    yield f"  groups {schedule.groups}, timeout {schedule.timeout}"
    for number, op in enumerate(schedule.ops):
        how = [
            f"{rank}{'a' if step.asynchronous else 's'}{'m' if step.shared else ''}"
            + (f" then waits {list(step.then_wait)}" if step.then_wait else "")
            for rank, steps in enumerate(schedule.steps)
            for step in steps
            if step.op == number
        ]
        yield f"  {number:3} {op}: {', '.join(how)}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedules", type=int, default=5000)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first schedule; then one more each"
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="this one schedule alone")
    parser.add_argument("--times", type=int, default=1, help="how often to replay it")
    parser.add_argument(
        "--lanes", type=int, default=1, help="schedules at a time, of each configuration"
    )
    parser.add_argument("--summary", type=Path, help="write what was found as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.replay is None:
        seeds: Iterator[int] = iter(range(chosen.seed, chosen.seed + chosen.schedules))
    else:
        seeds = itertools.repeat(chosen.replay, chosen.times)
        print("\n".join(show(make_schedule(chosen.replay))))
    schedules = [make_schedule(seed) for seed in seeds]
    with tqdm(total=len(schedules), unit="schedule", mininterval=2) as bar:
        summary = soak(schedules, chosen.lanes, _report(bar))
    options = {key: value for key, value in vars(chosen).items() if key != "summary"}
    found = summary.as_json(options)
    print(json.dumps(found, indent=2))
    if chosen.summary is not None:
        chosen.summary.write_text(json.dumps(found, indent=2) + "\n")
    complete = summary.schedules == len(schedules)
    return 0 if complete and not summary.failures and not summary.remains else 1


if __name__ == "__main__":
    sys.exit(main())

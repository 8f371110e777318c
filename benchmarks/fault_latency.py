"""How long survivors need to learn of a death: from the exit of a rank to their exceptions.

    python benchmarks/fault_latency.py [--json results.jsonl]

One rank is killed, again and again. An independent thread of this process, no rank, holds a pidfd
of the victim and notes when the kernel reports the exit; every survivor notes when its exception
comes, on the same clock. A kill counts as long as its slowest survivor took. SIGKILL itself takes
time, since the kernel gives the victim's memory back first: this is told beside, for victims that
hold some gigabytes (--resident-gb).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fastcomm._measure.launch import launch  # noqa: E402
from fastcomm._measure.rank import Rank  # noqa: E402
from fastcomm._measure.stats import summarize  # noqa: E402
from fastcomm.bench.records import RecordWriter  # noqa: E402

MEDIAN_MS, WORST_MS = 10.0, 200.0  # the claim
ELEMENTS = 1 << 20  # 4 MiB: a victim in a loop dies in the middle of one
MOMENTS = ("between operations", "in operations")
CALLS = ("sync", "async")

_fork_server = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Kill:
    """One death to bring about, as a survivor announces it."""

    number: int
    ranks: int
    victim: int
    moment: str
    call: str
    resident_gb: float
    port: int = 0  # of the store


@dataclass
class Times:
    """Of one kill, in nanoseconds of CLOCK_MONOTONIC."""

    killed: int = 0
    exited: int = 0
    told: list[int] = field(default_factory=list)


def join(kill: Kill, rank: int, port: int) -> None:
    """Form the group of one kill; the store of the launcher serves all of them."""
    store = dist.PrefixStore(str(kill.number), dist.TCPStore("127.0.0.1", port))
    dist.init_process_group(
        "fastcomm",
        store=store,
        rank=rank,
        world_size=kill.ranks,
        timeout=timedelta(seconds=60),
    )
    dist.all_reduce(torch.zeros(ELEMENTS))


def reduce_for_ever(call: str) -> None:
    """End by an exception, or by SIGKILL."""
    tensors = [torch.zeros(ELEMENTS) for _ in range(1 if call == "sync" else 4)]
    while True:
        works = [dist.all_reduce(tensor, async_op=call == "async") for tensor in tensors]
        for work in works:
            if work is not None:
                work.wait()


def be_victim(kill: Kill, ready: Connection) -> None:
    """Body of the process that is killed."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    held = torch.ones(int(kill.resident_gb * 2**30), dtype=torch.uint8)
    join(kill, kill.victim, kill.port)
    ready.send(held.numel())
    if kill.moment == "in operations":
        reduce_for_ever(kill.call)
    time.sleep(120)


def be_survivor(rank: Rank, kills: list[Kill]) -> list[int]:
    """When this rank's exception came, for each kill."""
    port = int(os.environ["MASTER_PORT"])
    told = []
    for kill in kills:
        if rank.rank == 0:
            rank.report((kill.number, port))
        join(kill, rank.rank + (rank.rank >= kill.victim), port)
        try:
            reduce_for_ever(kill.call)
        except Exception as error:
            told.append(time.monotonic_ns())
            if getattr(error, "peer", None) != kill.victim:
                raise
        dist.destroy_process_group()
    return told


class Executioner:
    """Starts victims, kills them, and notes when the kernel says that they are gone."""

    def __init__(self, kills: list[Kill], seed: int) -> None:
        self.kills = kills
        self.times = [Times() for _ in kills]
        self.random = random.Random(seed)
        self.threads: list[threading.Thread] = []

    def start(self, _: int, message: tuple[int, int]) -> None:
        """Begin with the kill that a survivor announced; returns at once."""
        number, port = message
        kill = replace(self.kills[number], port=port)
        receiver, sender = _fork_server.Pipe(duplex=False)
        victim = _fork_server.Process(target=be_victim, args=(kill, sender), daemon=True)
        victim.start()
        sender.close()
        assert victim.pid
        self.threads.append(threading.Thread(target=self._kill, args=(kill, victim.pid, receiver)))
        self.threads[-1].start()

    def _kill(self, kill: Kill, pid: int, ready: Connection) -> None:
        # Survivors use every core: this thread must not stand in line to take the time.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        pidfd = os.pidfd_open(pid)
        ready.recv()
        time.sleep(0.03 + 0.03 * self.random.random())
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        killed = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        poll.poll()
        self.times[kill.number] = Times(killed, time.monotonic_ns())
        os.close(pidfd)


def measure(kills: list[Kill], seed: int) -> list[Times]:
    """Bring about all deaths of one size of group, one after the other."""
    executioner = Executioner(kills, seed)
    size = kills[0].ranks - 1
    limit = 60.0 + 5 * len(kills)
    told = launch(be_survivor, size, kills, timeout_s=limit, on_message=executioner.start)
    for thread in executioner.threads:
        thread.join()
    for number, times in enumerate(executioner.times):
        times.told = [survivor[number] for survivor in told]
    return executioner.times


def plan(ranks: int, moment: str, call: str, resident: float, count: int, first: int) -> list[Kill]:
    """Kills of one case; every rank is the victim in turn."""
    return [
        Kill(first + number, ranks, number % ranks, moment, call, resident)
        for number in range(count)
    ]


def row_of(kill: Kill, times: list[Times], seed: int) -> dict[str, Any]:
    """What is written and printed of one case."""
    from_exit = [max(each.told) - each.exited for each in times]
    from_kill = [max(each.told) - each.killed for each in times]
    row: dict[str, Any] = {"benchmark": "fault_latency", "seed": seed, "ranks": kill.ranks}
    row |= {"moment": kill.moment, "call": kill.call, "resident_gb": kill.resident_gb}
    row |= {"bytes": 4 * ELEMENTS, "kills": len(times)}
    row |= {"from_exit": asdict(summarize(from_exit)), "worst_from_exit_us": max(from_exit) / 1e3}
    row |= {"from_kill": asdict(summarize(from_kill)), "worst_from_kill_us": max(from_kill) / 1e3}
    return row


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['ranks']:>5}  {row['moment']:<19}{row['call']:<6}{row['resident_gb']:>8g}"
        f"{row['kills']:>6}{row['from_exit']['median_us'] / 1e3:>10.2f}"
        f"{row['worst_from_exit_us'] / 1e3:>10.2f}"
        f"{row['from_kill']['median_us'] / 1e3:>12.2f}{row['worst_from_kill_us'] / 1e3:>10.2f}",
        flush=True,
    )


def main() -> int:
    """Measure every case; exit status 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--kills", type=int, default=30, help="a case (default 30)")
    parser.add_argument("--resident-gb", type=float, nargs="*", default=[0.1, 4.0, 8.0])
    parser.add_argument("--resident-kills", type=int, default=2, help="a size (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of death")
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    arguments = parser.parse_args()
    _fork_server.set_forkserver_preload(["torch._dynamo", "fastcomm._distributed.backend"])
    writer = RecordWriter(arguments.json, sys.argv) if arguments.json else None
    print("milliseconds from the exit, and from SIGKILL, to the exception on every survivor")
    print(
        "ranks  victim dies        calls   GB held kills    median     worst  from kill     worst"
    )
    holds = True
    for ranks in [*arguments.ranks, 0]:
        kills: list[Kill] = []
        cases: list[tuple[int, int]] = []
        for moment in MOMENTS if ranks else ():
            for call in CALLS:
                cases.append((len(kills), arguments.kills))
                kills += plan(ranks, moment, call, 0.0, arguments.kills, len(kills))
        for resident in () if ranks else arguments.resident_gb:
            cases.append((len(kills), arguments.resident_kills))
            kills += plan(
                2, "between operations", "sync", resident, arguments.resident_kills, len(kills)
            )
        if not kills:
            continue
        times = measure(kills, arguments.seed)
        for first, count in cases:
            row = row_of(kills[first], times[first : first + count], arguments.seed)
            holds &= row["from_exit"]["median_us"] <= MEDIAN_MS * 1e3
            holds &= row["worst_from_exit_us"] <= WORST_MS * 1e3
            show(row)
            if writer:
                writer.write(row)
    if writer:
        writer.close()
    verdict = "holds" if holds else "DOES NOT HOLD"
    print(f"from the exit: median at most {MEDIAN_MS:g} ms, worst {WORST_MS:g} ms: {verdict}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

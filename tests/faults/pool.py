"""Reusable rank processes, and what starts them, listens to them and never waits for ever.

A lane has up to six rank processes and plays one schedule at a time; only victims that end are
replaced. A rank that does not answer in time hangs: everything that may explain it is kept, then
the lane's processes are killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist
from faults import rank as rank_module
from faults.report import Ended, Fresh, Now, Run
from faults.schedule import CONFIGURATIONS, DEADLY, Schedule
from support.patience import ENDS
from support.ranks import RankProcess, preload

preload("faults.rank")

# Longer than any wait of a schedule, even on a busy machine.
PATIENCE = ENDS
# What a process may hold beyond its first run's: connections to ranks that it had not met.
GROWTH = {"descriptors": 10, "threads": 4}


class Player(RankProcess):
    """One process that plays ranks."""

    def __init__(self, port: int, folder: str, environment: dict[str, str]) -> None:
        descriptor, log = tempfile.mkstemp(suffix=".log", dir=folder)
        os.close(descriptor)
        super().__init__(rank_module.serve, port, environment=environment, log=log, daemon=True)
        self.first: Any = None  # its resources after its first run
        self.last: Any = None
        self.told = False
        self.runs = 0

    def send(self, *order: object) -> None:
        with contextlib.suppress(OSError):  # if the process has ended, listening tells
            self.pipe.send(order)

    def evidence(self, rank: int) -> str:
        """Return what may explain why it does not answer."""
        pid = self.process.pid
        parts = [f"\n==== rank {rank}, pid {pid}, does not answer\n"]
        for name in ("status", "wchan", "stack"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_text()
            except OSError as error:
                text = str(error)
            parts.append(f"---- {name}\n{text}\n")
        self.write_stacks()
        return "".join([*parts, f"---- output\n{self.output()}\n"])


class Lane:
    """Plays schedules of one configuration, one after another."""

    def __init__(self, configuration: str) -> None:
        self.configuration = configuration
        self.folder = tempfile.mkdtemp(prefix="faults-")
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.ranks: list[Player] = []
        self.played = 0
        self.graves: set[int] = set()  # memory of processes that ended

    def close(self) -> list[str]:
        """End the rank processes; return which did not end by themselves."""
        for process in self.ranks:
            process.pipe.close()  # which ends it
        left = [
            f"the process {process.process.pid} of a rank did not end"
            for process in self.ranks
            if process.end(PATIENCE) != 0
        ]
        self.ranks.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def growth(self) -> list[str]:
        """Return rank processes that hold more than after their first run; report each once."""
        wrong = []
        for player in self.ranks:
            first, last = player.first, player.last
            if first is None or player.told:
                continue
            for name in ("descriptors", "threads"):
                if getattr(last, name) > getattr(first, name) + GROWTH[name]:
                    player.told = True
                    wrong.append(f"after {player.runs} runs a rank holds {last}; at first {first}")
        return wrong

    def play(self, schedule: Schedule) -> Run:
        """Play a schedule; never raises for what a rank does, and always returns."""
        start = time.monotonic()
        self.played += 1
        run = Run(schedule, dead_segments=frozenset(self.graves))
        players = self._players(schedule)
        name = f"{self.played}-{schedule.seed}"
        for rank, player in players.items():
            player.send("play", schedule, rank, f"{name}/first")
        self._listen(run, players, Ended, run.ended)
        if not run.hung:
            self._bury(run, players)
            for rank, player in enumerate(players.values()):
                player.send("regroup", rank, len(players), f"{name}/second")
            self._listen(run, players, Fresh, run.fresh)
        if run.hung:
            run.evidence = "".join(players[rank].evidence(rank) for rank in run.hung)
            for process in self.ranks:
                process.end(0.0)
            self.ranks.clear()
        else:
            self._take_stock(run, players)
        run.seconds = time.monotonic() - start
        return run

    def _players(self, schedule: Schedule) -> dict[int, Player]:
        while len(self.ranks) < schedule.size:
            settings = CONFIGURATIONS[self.configuration]
            self.ranks.append(Player(self.store.port, self.folder, settings))
        chosen = random.Random(schedule.seed).sample(self.ranks, schedule.size)
        return dict(enumerate(chosen))

    def _listen(
        self, run: Run, players: dict[int, Player], awaited: type, answers: dict[int, Any]
    ) -> None:
        """Take answers until every rank has given one, or has ended, or is too late."""
        missing = dict(players)
        due: list[tuple[float, int]] = []
        deadline = time.monotonic() + PATIENCE
        # Signals too: a victim that has answered and is then stopped must be woken again.
        while True:
            now = time.monotonic()
            while due and due[0][0] <= now:
                number = due.pop(0)[1]
                players[run.schedule.fault.victim].signal(number)
                if number == signal.SIGKILL:
                    run.killed_at = now
            if not missing and not due:
                return
            if now > deadline:
                run.hung = sorted(missing)
                return
            pause = (min(due[0][0], deadline) if due else deadline) - now
            by_pipe = {player.pipe: rank for rank, player in missing.items()}
            for pipe in wait(list(by_pipe), timeout=max(0.0, pause)):
                assert isinstance(pipe, Connection)
                rank = by_pipe[pipe]
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    del missing[rank]
                    continue
                if isinstance(message, Now):
                    run.struck = message
                    due += [(message.at + after, number) for after, number in message.signals]
                    due.sort()
                elif isinstance(message, awaited):
                    answers[rank] = message
                    # A victim that is still to be killed waits for that.
                    doomed = any(number == signal.SIGKILL for _, number in due)
                    if not (doomed and rank == run.schedule.fault.victim):
                        del missing[rank]

    def _bury(self, run: Run, players: dict[int, Player]) -> None:
        """Wait for the ranks that ended."""
        for rank in list(players):
            player = players[rank]
            deadly = run.schedule.fault.kind in DEADLY and rank == run.schedule.fault.victim
            if rank in run.ended and not deadly:
                continue
            run.exits[rank] = player.end()
            if run.struck is not None:
                self.graves.add(run.struck.segment)
            self.ranks.remove(player)
            del players[rank]

    def _take_stock(self, run: Run, players: dict[int, Player]) -> None:
        for rank, answer in run.fresh.items():
            players[rank].runs += 1
            players[rank].last = answer.resources
            players[rank].first = players[rank].first or answer.resources
        for rank in set(players) - set(run.fresh):  # ended while the new group was formed
            run.exits[rank] = players[rank].end()
            self.ranks.remove(players[rank])

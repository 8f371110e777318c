"""Four ranks that play trials of `trials.held_up`, and the `top` that is asked about each."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.namespaces import Host
from support.patience import ENDS, OPERATION, until
from support.ranks import RankProcess, World
from trials.held_up import (
    GONE,
    GROUPS,
    INSIDE,
    KILLED,
    KILLS,
    LOOPS,
    RANKS,
    SLEEPS,
    STOPPED,
    Trial,
    drawn,
    numbers,
)
from trials.held_up_judge import Asked, trouble
from trials.held_up_rank import DONE, HEALTHY, LOST, THERE, serve

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Played:
    """A trial, what `top` said wrongly, and how long it took, in seconds."""

    trial: Trial
    asked: Asked
    trouble: str
    seconds: float


class Top:
    """Asks `top`, whose modules are compiled once, as those of an installed package are."""

    def __init__(self, folder: str) -> None:
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPYCACHEPREFIX": f"{folder}/compiled",
            "PYTHONPATH": str(ROOT),
        }
        self.empty = f"{folder}/empty"
        os.mkdir(self.empty)
        for words in (["--json"], []):
            self.ask(str(os.getpid()), *words)

    def ask(
        self, *words: str, hidden: Iterable[int] = ()
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        """Return what it says at once, and how long it takes from its start.

        Args:
            words: of the command line.
            hidden: processes that it does not see, as if they were of another host.
        """
        command = [sys.executable, "-m", "fastcomm", "top", "--once", *words]
        mounts = [f"mount --bind {self.empty} /proc/{pid}" for pid in hidden]
        if mounts:
            script = " && ".join([*mounts, 'exec "$@"'])
            command = ["unshare", "-m", "sh", "-c", script, "top", *command]
        begin = time.monotonic()
        found = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=ENDS
        )
        return found, time.monotonic() - begin


@dataclass(frozen=True)
class Where:
    """Where ranks run: on one host, or on several; ``places`` has the host's number of each."""

    hosts: list[Host] | None = None
    places: str = ""
    transport: str = "auto"


class Pool:
    """Ranks that play trial after trial; a new one is needed after a kill."""

    def __init__(self, top: Top, where: Where) -> None:
        self.top = top
        self.folder = tempfile.mkdtemp(prefix="held-up-")
        self.flag = Path(self.folder, "loops")
        self.flag.write_bytes(b"\0")
        self.done = [0] * len(GROUPS)  # collectives, by group
        self.ranks = [
            RankProcess(
                *(serve, World(rank, RANKS, self.folder), where.hosts, where.places),
                environment={"FASTCOMM_TRANSPORT": where.transport},
                log=f"{self.folder}/rank {rank}.log",
                daemon=True,
            )
            for rank in range(RANKS)
        ]
        told = [self._received(rank) for rank in range(RANKS)]
        self.names = [
            next(names[group] for names in told if names[group]) for group in range(len(GROUPS))
        ]

    def close(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            rank.pipe.close()
            rank.signal(signal.SIGKILL)
        for rank in self.ranks:
            rank.end()
        shutil.rmtree(self.folder)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.process.pid for rank in self.ranks)

    def play(self, seed: int) -> Played:
        """Play a trial, and ask `top` about it."""
        trial = drawn(seed)
        with self.held_up(trial):
            words = [] if trial.is_text else ["--json"]
            if trial.asked is not None:
                words.append(str(self.pids[trial.asked]))
            asked, seconds = self.ask(trial, *words)
        wrong = trouble(trial, asked)
        if trial.asked is not None and asked.errors:
            wrong = wrong or f"it said to standard error: {asked.errors}"
        return Played(trial, asked, wrong, seconds)

    @contextlib.contextmanager
    def held_up(self, trial: Trial) -> Iterator[None]:
        """Play a trial up to where `top` is to be asked; afterwards let the ranks go on."""
        self._hold_up(trial)
        time.sleep(trial.pause)
        yield
        if trial.kind not in KILLS:
            self._let_go(trial)
        self.done = numbers(trial, self.done)[1]

    def ask(self, trial: Trial, *words: str, hidden: Iterable[int] = ()) -> tuple[Asked, float]:
        """Ask `top` about a trial; return how many seconds it took, too."""
        said, seconds = self.top.ask(*words, hidden=hidden)
        begin = tuple(numbers(trial, self.done)[0])
        answer = said.returncode, said.stdout, said.stderr.strip()
        return Asked(self.pids, tuple(self.names), begin, *answer), seconds

    def _hold_up(self, trial: Trial) -> None:
        others = [rank for rank in range(RANKS) if rank != trial.victim]
        victim = self.ranks[trial.victim]
        self._set_flag(0)
        for rank in range(RANKS):
            self.ranks[rank].pipe.send(trial.seed)
        self._expect(range(RANKS), HEALTHY)
        self._expect([trial.victim], THERE)
        if trial.kind in INSIDE or trial.kind == STOPPED:
            self._end(victim, trial)
        for rank in others:
            self.ranks[rank].pipe.send("go")
        if trial.kind == KILLED:
            self._expect(others, THERE)
            self._end(victim, trial)
        self._expect(others, LOST if trial.kind in KILLS else THERE)

    def _end(self, victim: RankProcess, trial: Trial) -> None:
        if trial.kind in KILLS:
            victim.signal(signal.SIGKILL)
            assert victim.status(ENDS) == -signal.SIGKILL
            return
        victim.signal(signal.SIGSTOP)
        stat = Path(f"/proc/{victim.process.pid}/stat")
        until(lambda: re.search(r"\) T ", stat.read_text()), "a rank that is stopped")

    def _let_go(self, trial: Trial) -> None:
        victim = self.ranks[trial.victim]
        if trial.kind in GONE:
            victim.signal(signal.SIGCONT)
            victim.pipe.send("go on")
        if trial.kind in (LOOPS, SLEEPS):
            self._set_flag(1)
        for rank in trial.asynchronous - {trial.victim}:
            self.ranks[rank].pipe.send("go on")
        self._expect(range(RANKS), DONE)

    def _set_flag(self, value: int) -> None:
        with self.flag.open("r+b") as file:
            file.write(bytes([value]))

    def _received(self, rank: int) -> Any:
        process = self.ranks[rank]
        try:
            if process.pipe.poll(OPERATION + 30):
                return process.pipe.recv()
            process.write_stacks()
            raise AssertionError(f"rank {rank} does not answer: {process.output()}")
        except (EOFError, OSError):
            raise AssertionError(f"rank {rank} has ended: {process.output()}") from None

    def _expect(self, ranks: Iterable[int], word: str) -> None:
        """Wait for a word of each of the ranks; others may come before `LOST`."""
        for rank in ranks:
            heard = self._received(rank)
            while word == LOST and heard == THERE:
                heard = self._received(rank)
            assert heard == word, f"rank {rank} says {heard}, not {word}"

"""Ranks, each a process; and a function that several of them run, with what they return.

The ranks come from a fork server that has torch loaded, so that a test with eight ranks on two
cores does not spend its time importing. Nothing here can hang: every rank has a deadline, and tells
where it is when it misses that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing as mp
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from support.patience import ENDS, OPERATION, until

_context = mp.get_context("forkserver")
_starting = threading.Lock()  # multiprocessing's own lists are not thread-safe


def preload(*modules: str) -> None:
    """Let the fork server load modules as well; before the first rank is started."""
    # torch._dynamo: DistributedDataParallel and the optimizers import it at their first use.
    # pytest: a rank imports its function's test file, which would cost a tenth of a second each.
    ours = ("torch._dynamo", "torch.distributed", "fastcomm._distributed.backend", "pytest")
    _context.set_forkserver_preload([*ours, *modules])


preload()


class RankProcess:
    """A process that calls ``target(pipe, *arguments)``; ``pipe`` is the other end of its own.

    With ``log`` its output goes there. A daemon ends with its parent, and may have no children.
    """

    def __init__(
        self, target: Callable[..., object], *arguments: Any,
        environment: Mapping[str, str] | None = None, log: str | None = None, daemon: bool = False,
    ) -> None:  # fmt: skip
        self.pipe, theirs = _context.Pipe()
        self.log = log
        self.process: Any = _context.Process(
            target=_main, args=(target, arguments, environment or {}, log, theirs), daemon=daemon
        )
        with _starting:
            self.process.start()
        theirs.close()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def end(self, patience: float = ENDS) -> int | None:
        """Wait for a process that is to end by itself, kill it otherwise; return its status."""
        status = self.status(patience)
        self.process.kill()
        self.status(None)
        self.pipe.close()
        return status

    def status(self, patience: float | None = 0.0) -> int | None:
        """Return the status, as soon as there is one; one thread at a time reads it.

        Whoever starts a process reads the statuses of all. A status can be read once: a second
        thread would find nothing and take the process for lost (status 255).
        """
        wait([self.process.sentinel], patience)
        with _starting:
            status: int | None = self.process.exitcode
        return status

    def output(self, characters: int = 8000) -> str:
        """Return what is in the log: the cause of a crash comes first, that of a hang last."""
        text = Path(self.log).read_text(errors="replace") if self.log else ""
        if len(text) <= characters:
            return text
        return f"{text[: characters // 2]}\n[...]\n{text[-characters // 2 :]}"

    def write_stacks(self) -> None:
        """Let a process that does not answer write where its threads are, to its output."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGUSR1)
        time.sleep(0.5)


def received(pipe: Connection) -> Any:
    """Return what came through a pipe, or None."""
    try:
        return pipe.recv() if pipe.poll() else None
    except (EOFError, OSError):
        return None


def _main(
    target: Callable[..., object],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    log: str | None,
    pipe: Connection,
) -> None:
    os.environ.update(environment)
    if log is not None:
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    # A process that was started in the background ignores Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import torch

    torch.set_num_threads(1)
    target(pipe, *arguments)


class RankFailedError(AssertionError):
    """A rank raised, died or did not end in time."""


@dataclass
class Outcome:
    """How one rank ended: a value, or the text of its exception, or only an exit status."""

    rank: int
    value: Any = None
    error: str | None = None
    exitcode: int | None = None
    finished: bool = False


@dataclass
class World:
    """What a rank's function is told about its world."""

    rank: int
    size: int
    directory: str
    backend: str = "fastcomm"
    timeout: timedelta = field(default_factory=lambda: timedelta(seconds=OPERATION))

    def init(
        self,
        backend: str | None = None,
        name: str = "store",
        forming: timedelta | None = None,
    ) -> None:
        """Call ``init_process_group`` over a file store that the ranks share.

        A short timeout holds from then on: how long ranks take to start is not its subject, unless
        ``forming`` gives a timeout for that.
        """
        import torch.distributed as dist

        store = dist.FileStore(os.path.join(self.directory, name), self.size)
        dist.init_process_group(
            backend or self.backend,
            store=store,
            rank=self.rank,
            world_size=self.size,
            timeout=forming or max(self.timeout, timedelta(seconds=OPERATION)),
        )
        if forming is None and self.timeout < timedelta(seconds=OPERATION):
            assert dist.group.WORLD is not None
            dist.group.WORLD.set_timeout(self.timeout)

    def set_variables(self) -> None:
        """Set the environment variables that torchrun sets, which some programs look for."""
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        values = (self.rank, self.rank, self.size, self.size)
        os.environ.update(zip(names, map(str, values), strict=True), OMP_NUM_THREADS="1")

    def tell(self, what: str) -> None:
        """Let ranks go on that wait for this."""
        Path(self.directory, f"told {what}").touch()

    def hear(self, what: str) -> None:
        """Wait until a rank has told this, however slow the machine is."""
        until(Path(self.directory, f"told {what}").exists, f"nobody told: {what}")

    def join(self, kind: str, many: int) -> list[str]:
        """Join the default group, and return ``many`` devices of this rank's own.

        They are slots on the "cpu", or devices of the simulation ("sim"), which is loaded here.
        """
        if kind == "cpu":
            self.init()
            return ["cpu"] * many
        import sim

        count = sim.load().device_count()
        self.init("cpu:fastcomm,sim:fastcomm")
        return [f"sim:{(many * self.rank + i) % count}" for i in range(many)]


def _answer(
    pipe: Connection, function: Callable[..., Any], world: World, arguments: tuple[Any, ...]
) -> None:
    import torch.distributed as dist

    try:
        value = function(world, *arguments)
        _check_simulation()
        payload = pickle.dumps((value, None))
    except BaseException:
        payload = pickle.dumps((None, traceback.format_exc()))
    pipe.send_bytes(payload)
    pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _check_simulation() -> None:
    """Fail if simulated devices made unordered uses of memory."""
    simulation = sys.modules.get("sim")
    if simulation is not None:
        simulation.check()


def run_outcomes(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
    timeout: float = ENDS,
    group_timeout: float = OPERATION,
    backend: str = "fastcomm",
) -> list[Outcome]:
    """Run ``function(world, *arguments)`` on ``size`` ranks; never raises for what a rank does.

    Args:
        size: number of ranks.
        function: a function of a module, so that it can be pickled.
        environment: set in each rank before anything native is loaded.
        timeout: seconds until what is still running is killed.
        group_timeout: seconds, the process group's timeout.
        backend: for ``World.init()``.
    """
    outcomes = [Outcome(rank) for rank in range(size)]
    with tempfile.TemporaryDirectory() as directory:
        limit = timedelta(seconds=group_timeout)
        processes = [
            RankProcess(
                _answer,
                function,
                World(rank, size, directory, backend, limit),
                arguments,
                environment=environment,
            )
            for rank in range(size)
        ]
        pipes = {process.pipe: outcomes[rank] for rank, process in enumerate(processes)}
        deadline = time.monotonic() + timeout
        while pipes and time.monotonic() < deadline:
            for ready in wait(list(pipes), timeout=max(0.0, deadline - time.monotonic())):
                assert isinstance(ready, Connection)
                outcome = pipes.pop(ready)
                try:
                    outcome.value, outcome.error = pickle.loads(ready.recv_bytes())
                    outcome.finished = True
                except (EOFError, OSError):
                    outcome.error = "the rank ended without an answer"
        for process, outcome in zip(processes, outcomes, strict=True):
            if process.status(max(0.1, deadline + 5 - time.monotonic())) is None:
                process.write_stacks()
                outcome.error = outcome.error or f"killed after {timeout} s"
                outcome.finished = False
            process.end(0.0)
            outcome.exitcode = process.status()
    return outcomes


def run_ranks(
    size: int, function: Callable[..., Any], *arguments: Any, **options: Any
) -> list[Any]:
    """Run ``function(world, *arguments)`` on ``size`` ranks and return their values.

    Raises:
        RankFailedError: a rank raised, died, did not end in time, or exited with an error.
    """
    outcomes = run_outcomes(size, function, *arguments, **options)
    failures = [
        f"rank {outcome.rank} (exit status {outcome.exitcode}): {outcome.error}"
        for outcome in outcomes
        if outcome.error is not None or not outcome.finished or outcome.exitcode != 0
    ]
    if failures:
        raise RankFailedError("\n".join(failures))
    return [outcome.value for outcome in outcomes]

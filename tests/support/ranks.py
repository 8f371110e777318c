"""Run a function as several ranks, each a process, and collect what they return.

The ranks come from a fork server that has torch loaded, so that a test with eight ranks on two
cores does not spend its time importing. Nothing here can hang: every rank has a deadline.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from support.patience import ENDS, OPERATION, until

_context = mp.get_context("forkserver")
# torch._dynamo: DistributedDataParallel and the optimizers import it at their first use.
# pytest: a rank imports its function's test file, which would cost a tenth of a second each time.
_context.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed", "fastcomm._distributed.backend", "pytest"]
)


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


def _main(
    function: Callable[..., Any],
    world: World,
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    pipe: Connection,
) -> None:
    os.environ.update(environment)
    # A process that was started in the background ignores Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
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
        processes: list[BaseProcess] = []
        pipes: dict[Connection, int] = {}
        for rank in range(size):
            world = World(rank, size, directory, backend, timedelta(seconds=group_timeout))
            receiver, sender = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_main, args=(function, world, arguments, environment or {}, sender)
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes[receiver] = rank
        deadline = time.monotonic() + timeout
        while pipes and time.monotonic() < deadline:
            for ready in wait(list(pipes), timeout=max(0.0, deadline - time.monotonic())):
                assert isinstance(ready, Connection)
                outcome = outcomes[pipes.pop(ready)]
                try:
                    outcome.value, outcome.error = pickle.loads(ready.recv_bytes())
                    outcome.finished = True
                except EOFError:
                    outcome.error = "the rank ended without an answer"
        for process, outcome in zip(processes, outcomes, strict=True):
            process.join(max(0.1, deadline + 5 - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
                outcome.error = outcome.error or f"killed after {timeout} s"
                outcome.finished = False
            outcome.exitcode = process.exitcode
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

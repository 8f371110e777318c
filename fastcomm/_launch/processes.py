"""Processes of ranks: their start, what they answer, and their end.

The parent hosts the store, as torchrun does, so no port is guessed, and ``init_process_group``
works in a rank without further arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fastcomm._launch import output
from fastcomm._launch.errors import Failure, ending
from fastcomm._launch.function import VALUE
from fastcomm._machine.division import Share

# Seconds: for others to fail by themselves after one has failed, and from SIGTERM to SIGKILL.
OTHERS_S = 2.0
TERM_S = 3.0
# Seconds for the end of a process that has answered: longer is a fault worth telling of.
EXIT_S = 30.0
_PAUSE_S = 0.1  # between looks at who has ended
_PROGRAM = Path(__file__).with_name("rank.py")


@dataclass(frozen=True)
class Task:
    """A task for all ranks: a script, or a function.

    Attributes:
        words: ``sys.argv`` of the ranks.
        runs: whether ranks run the command line ``fastcomm`` with these words.
        function: a pickled function and its arguments, else.
        backend: of the group that is formed for the function; None for none.
        timeout_s: of that group, in seconds; None for torch's default.
    """

    words: Sequence[str]
    runs: bool = False
    function: bytes = b""
    backend: str | None = None
    timeout_s: float | None = None


@dataclass
class Rank:
    """A rank, as its parent sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    answers: Connection | None
    outputs: list[output.Output]
    asked: bool
    end: int | None = None  # a descriptor that can be read once the process has ended
    value: Any = None
    answered: bool = False
    failure: Failure | None = None
    done: bool = False


@dataclass
class Outcome:
    """The end of all ranks.

    Attributes:
        values: by rank, of those that have answered.
        failures: of the ranks that failed by themselves.
        ended: the ranks that were ended because of that.
    """

    values: dict[int, Any] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


def run(
    task: Task,
    shares: Sequence[Share],
    *,
    bind: bool,
    environment: Mapping[str, str],
    interrupted_s: float = 0.0,
) -> Outcome:
    """Run a task as one rank for each share, to the end of all of them; see `started`."""
    with started(
        task, shares, bind=bind, environment=environment, interrupted_s=interrupted_s
    ) as ranks:
        return watch(ranks)


@contextlib.contextmanager
def started(
    task: Task,
    shares: Sequence[Share],
    *,
    bind: bool,
    environment: Mapping[str, str],
    interrupted_s: float = 0.0,
) -> Iterator[list[Rank]]:
    """Start a task as one rank for each share, and end those that still run at the end.

    The calling thread must `watch` them, which writes what they print. No process is left, whatever
    is raised.

    Args:
        task: what each rank does.
        shares: cores and threads of each rank.
        bind: whether ranks are bound to their cores.
        environment: variables that ranks have besides this process's.
        interrupted_s: seconds that ranks have after Ctrl-C, which a terminal sends to them too,
            until they are terminated.

    Raises:
        OSError: a process cannot be started.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks: list[Rank] = []
    patience = 0.0
    try:
        _start(ranks, task, shares, bind, store.port, environment)
        yield ranks
    except KeyboardInterrupt:
        patience = interrupted_s
        raise
    finally:
        _end(ranks, patience)


def _start(
    ranks: list[Rank],
    task: Task,
    shares: Sequence[Share],
    bind: bool,
    port: int,
    environment: Mapping[str, str],
) -> None:
    head = {
        "parent": os.getpid(),
        "cores": [share.cpus for share in shares] if bind else None,
        "path": [name or os.getcwd() for name in sys.path],
        "words": list(task.words),
        "runs": task.runs,
        "backend": task.backend,
        "timeout": task.timeout_s,
    }
    given = os.memfd_create("fastcomm-launch")
    try:
        with open(given, "wb", closefd=False) as file:
            file.write(json.dumps(head).encode() + b"\n" + task.function)
        for rank, share in enumerate(shares):
            settings = {**os.environ, **variables(rank, len(shares), port), **environment}
            settings.setdefault("OMP_NUM_THREADS", str(share.threads))
            ranks.append(_start_one(rank, given, settings, asks=not task.runs))
    finally:
        os.close(given)


def _start_one(rank: int, given: int, settings: dict[str, str], asks: bool) -> Rank:
    with contextlib.ExitStack() as inner:
        answers, passed = None, [given]
        if asks:
            answers, end = Pipe(duplex=False)
            inner.callback(end.close)
            passed.append(end.fileno())
        outputs = []
        descriptors: list[int | None] = []
        for number, name in enumerate(("stdout", "stderr"), 1):
            target = output.target(name, number)
            if target is not None:
                outputs.append(output.Output(target))
                inner.callback(os.close, outputs[-1].inner)
            descriptors.append(outputs[-1].inner if target is not None else None)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        process = subprocess.Popen(
            [sys.executable, *flags, str(_PROGRAM), *map(str, (*passed, -1)[:2])],
            env=settings,
            pass_fds=passed,
            stdin=subprocess.DEVNULL if asks else None,
            stdout=descriptors[0],
            stderr=descriptors[1],
        )
    started = Rank(rank, process, answers, outputs, asks)
    with contextlib.suppress(OSError):  # before Linux 5.3
        started.end = os.pidfd_open(process.pid)
    return started


def variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables of ``init_method="env://"``, with a store that the parent hosts."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # All ranks are on this machine; without it Gloo may warn that it cannot resolve its name.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }


def watch(ranks: Sequence[Rank], stop: threading.Event | None = None) -> Outcome:
    """Receive and forward until all processes have ended; end the others where some fail.

    Once ``stop`` is set it returns at once.
    """
    signalled: set[int] = set()
    next_step: float | None = None  # when those that still run are terminated, then killed
    while running := [rank for rank in ranks if not rank.done]:
        if stop is not None and stop.is_set():
            break
        sources: list[Any] = [rank.answers for rank in running if rank.answers is not None]
        sources += [each for rank in running for each in rank.outputs if each.is_open]
        sources += [rank.end for rank in running if rank.end is not None]
        wait(sources, _PAUSE_S) if sources else time.sleep(_PAUSE_S)
        for rank in running:
            _look_at(rank, rank.rank in signalled)
        running = [rank for rank in ranks if not rank.done]
        now = time.monotonic()
        if next_step is None:
            if any(rank.failure is not None for rank in ranks):
                next_step = now + OTHERS_S
            elif all(rank.answered for rank in ranks):
                next_step = now + EXIT_S
        elif now >= next_step:
            for rank in running:
                if rank.answered and rank.failure is None and not signalled:
                    text = f"has returned, but its process lives on after {EXIT_S:.0f} s"
                    rank.failure = Failure(rank.rank, text, time.monotonic_ns())
                (rank.process.kill if rank.rank in signalled else rank.process.terminate)()
                signalled.add(rank.rank)
            next_step = now + TERM_S
    return Outcome(
        {rank.rank: rank.value for rank in ranks if rank.answered},
        [rank.failure for rank in ranks if rank.failure is not None],
        [rank.rank for rank in ranks if rank.rank in signalled and rank.failure is None],
    )


def _look_at(rank: Rank, signalled: bool) -> None:
    """Take what has come of a rank, and see whether its process has ended."""
    status = rank.process.poll()  # first: what it sent before it ended is there afterwards
    for each in rank.outputs:
        each.forward()
    if rank.answers is not None and rank.answers.poll():
        _receive(rank, rank.answers)
    if status is None:
        return
    rank.done = True
    _close_end(rank)
    for each in rank.outputs:  # its children may hold them open
        each.close()
    unanswered = rank.asked and not rank.answered
    if rank.failure is None and not signalled and (status != 0 or unanswered):
        text = ending(status)
        if rank.answered:
            text = f"has returned, but then its process {text}"
        elif status == 0:
            text = f"its process {text} before the function returned"
        else:
            text = f"its process {text}"
        shell = status if status > 0 else 128 - status if status < 0 else 1
        rank.failure = Failure(rank.rank, text, time.monotonic_ns(), status=shell)


def _receive(rank: Rank, answers: Connection) -> None:
    """Take a rank's answer, the only one; its end alone is no answer."""
    rank.answers = None
    try:
        kind, when, payload, consequence = pickle.loads(answers.recv_bytes())
    except (EOFError, OSError):
        return
    finally:
        answers.close()
    if kind != VALUE:
        rank.failure = Failure(rank.rank, payload, when, consequence)
        return
    rank.answered = True
    try:
        rank.value = pickle.loads(payload)
    except Exception as error:
        text = f"its value cannot be unpickled here: {type(error).__name__}: {error}"
        rank.failure = Failure(rank.rank, text, when)


def _end(ranks: Sequence[Rank], patience: float) -> None:
    """End processes: wait for ``patience`` seconds, terminate, wait again, kill."""
    try:
        if _still_run(ranks, patience):
            for rank in ranks:
                rank.process.terminate()
            _still_run(ranks, TERM_S)
    finally:  # also if Ctrl-C comes again
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.process.wait()
            for each in rank.outputs:
                each.forward()
                each.close()
            if rank.answers is not None:
                rank.answers.close()
            _close_end(rank)


def _close_end(rank: Rank) -> None:
    if rank.end is not None:
        os.close(rank.end)
        rank.end = None


def _still_run(ranks: Sequence[Rank], seconds: float) -> bool:
    """Tell whether processes still run after so many seconds; forwards what they print."""
    deadline = time.monotonic() + seconds
    while any(rank.process.poll() is None for rank in ranks):
        if time.monotonic() >= deadline:
            return True
        for rank in ranks:
            for each in rank.outputs:
                each.forward()
        time.sleep(_PAUSE_S / 10)
    return False

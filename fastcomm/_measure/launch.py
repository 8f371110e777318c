"""Start ranks as processes on this machine, collect what they return, and never hang.

Every rank is a fresh interpreter (``spawn``).  The parent hosts the store, as torchrun does, so no
port is guessed and ``dist.init_process_group(backend)`` works in a rank without further arguments.

Failure: the first exception of a rank (or its death) is raised in the parent as `RankError` with
the rank's traceback; the other ranks are killed at once.  The same happens when ``timeout_s`` runs
out.  A rank ends itself when its parent dies, so a killed parent leaves no process behind.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
import torch.distributed as dist

from fastcomm._launch.function import end_process
from fastcomm._launch.processes import variables
from fastcomm._launch.rank import die_with_parent
from fastcomm._measure.rank import Rank, run_function

# A rank that has returned must also exit: threads that keep it alive are a fault worth reporting.
_EXIT_GRACE_S = 30.0


class RankError(RuntimeError):
    """A rank failed; ``__cause__`` is its own exception where that could be carried over."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank = rank


class LateError(RankError):
    """Ranks did not return in time."""


class StartError(RuntimeError):
    """Ranks do not start."""


class Process(Protocol):
    """A rank's process, as `multiprocessing` has it."""

    @property
    def exitcode(self) -> int | None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...

    def kill(self) -> None: ...


Start = Callable[[int], tuple[Sequence[Process], list[Connection]]]
"""Starts so many ranks, which are told over their connections what to run, and answer there.

Raises `StartError` where they do not start.
"""


class _Here:
    """The end of a pipe whose other one is this process."""

    def __init__(self, on_message: Callable[[Any], None]) -> None:
        self._on_message = on_message

    def send(self, report: tuple[str, int, Any]) -> None:
        self._on_message(report[2])


def running_job() -> tuple[int, int] | None:
    """This process's rank and the number of ranks, if something like torchrun has started them."""
    if any(name not in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def run_in_job(function: Callable[..., Any], *args: Any, on_message: Callable[[Any], None]) -> Any:
    """Run ``function(Rank, *args)`` as the rank that this process is of a job that runs.

    Raises:
        RankError: it raised.
    """
    job = running_job()
    assert job is not None
    torch.set_num_threads(1)
    try:
        return function(Rank(*job, _Here(on_message)), *args)
    except Exception as error:
        raise RankError(job[0], "".join(traceback.format_exception(error)).strip()) from error


def launch(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float,
    on_message: Callable[[int, Any], None] | None = None,
    start: Start | None = None,
) -> list[Any]:
    """Run ``function(Rank, *args)`` in ``size`` processes; the results in order of rank.

    Args:
        function: importable from a module (it is pickled by name), as are ``args``.
        size: number of ranks, at least 1.
        timeout_s: seconds for everything, start-up included.
        on_message: called in the parent as ``on_message(rank, message)`` for `Rank.report`.
        start: what starts them; else they are processes of this one's kind.

    Raises:
        RankError: a rank raised, died, or did not return or exit in time.
        StartError: of ``start``.
    """
    deadline = time.monotonic() + timeout_s
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    processes: list[Process] = []
    pipes: list[Connection] = []
    try:
        if start is not None:
            started, pipes = start(size)
            processes += started
            for rank, pipe in enumerate(pipes):
                pipe.send((function, variables(rank, size, store.port), args))
        for rank in range(0 if start is not None else size):
            pipe, child_pipe = context.Pipe()
            settings = variables(rank, size, store.port)
            spawned = context.Process(
                target=_rank_main,
                args=(function, Rank(rank, size, child_pipe), settings, args),
                daemon=True,
            )
            spawned.start()
            child_pipe.close()  # else the end of a dead rank's pipe would never be seen
            processes.append(spawned)
            pipes.append(pipe)
        results = _collect(processes, pipes, deadline, on_message)
        for rank, process in enumerate(processes):
            process.join(_EXIT_GRACE_S)
            if process.is_alive():
                raise RankError(rank, f"returned, but its process lives on after {_EXIT_GRACE_S} s")
        return results
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()


def _collect(
    processes: Sequence[Process],
    pipes: list[Connection],
    deadline: float,
    on_message: Callable[[int, Any], None] | None,
) -> list[Any]:
    """Receive until every rank has returned."""
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        pending = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(pending, max(0.0, deadline - time.monotonic()))
        if not ready:
            late = [rank for rank in range(len(pipes)) if rank not in results]
            raise LateError(late[0], f"no result in time; ranks {late} were killed")
        # One failure makes others fail a moment later: look at the earliest of those at hand.
        received = []
        for rank, pipe in enumerate(pipes):
            if pipe in ready:
                received.append((rank, *_receive(rank, pipe, processes[rank])))
        for rank, kind, _, payload in sorted(received, key=lambda item: item[2]):
            if kind == "error":
                cause, text = payload
                raise RankError(rank, text) from cause
            if kind == "result":
                results[rank] = payload
            elif on_message is not None:
                on_message(rank, payload)
    return [results[rank] for rank in range(len(pipes))]


def _receive(rank: int, pipe: Connection, process: Process) -> tuple[str, int, Any]:
    """The next report of ``rank``; its death is turned into one."""
    try:
        kind, when, payload = pipe.recv()
    except (EOFError, OSError):
        process.join(_EXIT_GRACE_S)
        reason = f"its process ended with code {process.exitcode} and without a result"
        return "error", time.monotonic_ns(), (None, reason)
    if kind == "error":
        with contextlib.suppress(Exception):  # an exception may not survive pickling
            return kind, when, (pickle.loads(payload[0]), payload[1])
        return kind, when, (None, payload[1])
    return kind, when, payload


def _rank_main(
    function: Callable[..., Any], rank: Rank, settings: dict[str, str], args: tuple[Any, ...]
) -> None:
    """Body of a rank's process."""
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    die_with_parent(parent.pid)
    run_function(function, rank, settings, args)
    end_process()

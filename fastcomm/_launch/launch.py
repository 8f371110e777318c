"""`launch`: a function as several ranks of this host, from a notebook or a script."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastcomm._launch import pickles, processes
from fastcomm._launch.errors import LaunchError, launch_error
from fastcomm._machine import division, topology

__all__ = ["LaunchError", "launch"]

T = TypeVar("T")


def launch(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    *,
    ranks: int = 4,
    backend: str | None = "fastcomm",
    timeout: float | datetime.timedelta | None = None,
    bind: bool = False,
    env: Mapping[str, str] | None = None,
) -> list[T]:
    """Call ``fn(*args)`` on several ranks of this host, and return what each returns, in order.

    Each rank is a new process with an interpreter of its own. It does not run the script or the
    notebook that calls this, so no ``if __name__ == "__main__"`` is needed. With the package
    cloudpickle installed, ``fn`` may be defined anywhere, in a cell or as a lambda, too; without it
    ``fn`` must be importable from a module. ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
    ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are set as by torchrun, and the
    default group is formed before ``fn`` begins and destroyed after it.

    The calling thread waits. Where ``sys.stdout`` and ``sys.stderr`` are not the descriptors 1 and
    2, as in a notebook, it writes to them what ranks print, line by line. Ctrl-C, or the notebook's
    interrupt, ends the ranks; they also end with the process that calls this, even by SIGKILL.

    Args:
        fn: the function.
        args: its arguments, the same for all ranks. Tensors are copied.
        ranks: the number of ranks, at least 1.
        backend: of the default group; None: ``fn`` calls ``init_process_group`` itself.
        timeout: of the default group, a timedelta or seconds; None for torch's default.
        bind: whether each rank is bound to cores of its own, as by ``fastcomm run --bind``.
        env: variables of the environment for the ranks, besides this process's. If
            ``OMP_NUM_THREADS`` is set neither there nor here, the cores that this process may use
            are divided among the ranks.

    Raises:
        LaunchError: ranks raised, died, or returned what cannot be pickled; the others were ended.
        ValueError: ``ranks`` or ``timeout`` is not above 0.
        RuntimeError: ``fn`` or ``args`` cannot be pickled.
        OSError: a process cannot be started.
        KeyboardInterrupt: Ctrl-C.
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    if isinstance(timeout, datetime.timedelta):
        timeout = timeout.total_seconds()
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be above 0 s, not {timeout}")
    task = processes.Task(
        words=sys.argv,
        function=pickles.dumps_function(fn, tuple(args)),
        backend=backend,
        timeout_s=timeout,
    )
    shares = division.divide(topology.cpus(), ranks, topology.quota())
    outcome = processes.run(task, shares, bind=bind, environment=env or {})
    if outcome.failures:
        raise launch_error(outcome.failures, outcome.ended, ranks)
    return [outcome.values[rank] for rank in range(ranks)]

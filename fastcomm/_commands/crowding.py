"""Warnings of ``fastcomm env``: local ranks that share cores, and threads that multiply."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from fastcomm._machine import division, topology
from fastcomm._machine.division import Cpu


def warnings_here() -> list[str]:
    """Return warnings for this process as one of the local ranks that something has started.

    ``LOCAL_WORLD_SIZE`` says how many there are, as torchrun and ``fastcomm run`` set it.
    """
    try:
        launchers: Collection[int] = os.sched_getaffinity(os.getppid())
    except OSError:  # it has ended
        launchers = os.sched_getaffinity(0)
    return warnings(os.environ, topology.cpus(), launchers, topology.quota())


def warnings(
    environment: Mapping[str, str],
    cpus: Sequence[Cpu],
    launchers: Collection[int],
    quota: float | None,
) -> list[str]:
    """Return a line for each way in which local ranks crowd the machine.

    Args:
        environment: of a rank.
        cpus: those that the rank may use.
        launchers: numbers of those that the process which started it may use: where the rank may
            use fewer, it is bound, and shares them with no other rank.
        quota: processors that the control group lets run at once, or None.
    """
    ranks = _number(environment.get("LOCAL_WORLD_SIZE"))
    if ranks is None or ranks < 2 or not cpus:
        return []
    found = []
    cores = division.physical_cores(cpus)
    is_bound = {cpu.number for cpu in cpus} < set(launchers)
    here = 1 if is_bound else ranks
    if here > cores:
        found.append(
            f"{ranks} local ranks share {_counted(cores, 'core')}: they wait for each other "
            "wherever one waits for a peer; start fewer"
        )
    named = environment.get("OMP_NUM_THREADS")
    threads = _number(named)
    if threads is None and named is None:
        threads = len(cpus)  # OpenMP takes all
    told = f"OMP_NUM_THREADS={named}" if named is not None else "OMP_NUM_THREADS is not set, and"
    fitting = division.threads_each(max(1, cores // here), ranks, quota)
    if threads is None or threads <= fitting:
        return found + _short(ranks, quota)
    if here * threads > max(cores, here):
        whom = "a bound rank" if is_bound else f"{ranks} local ranks"
        found.append(
            f"{told}: {whom} with {_counted(threads, 'thread')}"
            f"{'' if is_bound else ' each'} for {_counted(cores, 'core')}; "
            f"OMP_NUM_THREADS={fitting} fits"
        )
    elif quota is not None and ranks * threads > max(quota, ranks):
        found.append(
            f"{told}: {ranks} local ranks with {_counted(threads, 'thread')} each, of which the "
            f"control group lets {quota:g} run at once; OMP_NUM_THREADS={fitting} fits"
        )
    return found + _short(ranks, quota)


def _short(ranks: int, quota: float | None) -> list[str]:
    """Return a warning of a quota below the number of ranks."""
    if quota is None or quota >= ranks:
        return []
    return [
        f"the control group lets {quota:g} processors run at once, for {ranks} local ranks: "
        "all of them stand still for a part of each period"
    ]


def _number(text: str | None) -> int | None:
    # OMP_NUM_THREADS may be a list for nested levels: the first counts.
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

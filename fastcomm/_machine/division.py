"""Division of a machine's cores among the ranks of one host. Pure: it asks nothing of the machine.

Physical cores stay whole, hyper-threads together, and no rank lies on two NUMA nodes where there
are at least as many ranks as nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """A hardware thread that a process may use.

    Attributes:
        number: the kernel's number of it.
        core: any number that the hyper-threads of one physical core have in common.
        node: its NUMA node.
    """

    number: int
    core: int
    node: int


@dataclass(frozen=True)
class Share:
    """A rank's share of the machine.

    Attributes:
        cpus: numbers of hardware threads, ascending; those of whole physical cores.
        threads: for OpenMP, at least 1 and the same for all ranks.
    """

    cpus: tuple[int, ...]
    threads: int


Core = tuple[int, ...]


def divide(cpus: Iterable[Cpu], ranks: int, quota: float | None = None) -> list[Share]:
    """Return a share for each rank.

    Where there are more ranks than physical cores, neighbouring ranks share a core. Else no core is
    shared. Cores that are left over go to some of the ranks, for threads besides OpenMP's.

    Args:
        cpus: those that ranks may use, at least one.
        ranks: the number of ranks, at least 1.
        quota: processors that the control group lets run at once; None for no limit.

    Raises:
        ValueError: there are no cpus, or no ranks.
    """
    nodes = _nodes(cpus)
    if ranks < 1 or not nodes:
        raise ValueError(f"{ranks} ranks cannot share {sum(map(len, nodes))} cores")
    cores = [core for node in nodes for core in node]
    if ranks > len(cores):
        parts = [[cores[rank * len(cores) // ranks]] for rank in range(ranks)]
    elif ranks < len(nodes):
        parts = _whole_nodes(nodes, ranks)
    else:
        counts = _ranks_of_nodes([len(node) for node in nodes], ranks)
        parts = [
            part for node, count in zip(nodes, counts, strict=True) for part in _slices(node, count)
        ]
    threads = threads_each(min(len(part) for part in parts), ranks, quota)
    return [Share(tuple(sorted(cpu for core in part for cpu in core)), threads) for part in parts]


def threads_each(cores: int, ranks: int, quota: float | None) -> int:
    """Return the number of threads of each rank, at least 1.

    Args:
        cores: physical cores of each rank.
        ranks: the number of ranks.
        quota: processors that the control group lets all of them use at once, or None.
    """
    return max(1, cores if quota is None else min(cores, int(quota / ranks)))


def physical_cores(cpus: Iterable[Cpu]) -> int:
    """Return how many physical cores the hardware threads belong to."""
    return len({cpu.core for cpu in cpus})


def _nodes(cpus: Iterable[Cpu]) -> list[list[Core]]:
    """Return the cores of each node; both in the order of their first hardware threads."""
    found: dict[int, dict[int, list[int]]] = {}
    for cpu in sorted(cpus, key=lambda cpu: cpu.number):
        # A core lies on one node; where the kernel says otherwise, on that of its first thread.
        node = next((node for node, cores in found.items() if cpu.core in cores), cpu.node)
        found.setdefault(node, {}).setdefault(cpu.core, []).append(cpu.number)
    return [[tuple(core) for core in cores.values()] for cores in found.values()]


def _ranks_of_nodes(sizes: Sequence[int], ranks: int) -> list[int]:
    """Return how many ranks each node has, so that the smallest share is as large as can be."""
    counts = [0] * len(sizes)
    for _ in range(ranks):
        best = max(range(len(sizes)), key=lambda node: (sizes[node] / (counts[node] + 1), -node))
        counts[best] += 1
    return counts


def _slices(cores: Sequence[Core], count: int) -> list[list[Core]]:
    """Return neighbouring cores for each of ``count`` ranks; their numbers differ by at most 1."""
    ends = [part * len(cores) // count for part in range(count + 1)] if count else [0]
    return [list(cores[begin:end]) for begin, end in itertools.pairwise(ends)]


def _whole_nodes(nodes: Sequence[Sequence[Core]], ranks: int) -> list[list[Core]]:
    """Return whole nodes for each rank: the largest nodes first, to the rank that has least."""
    parts: list[list[Core]] = [[] for _ in range(ranks)]
    for node in sorted(nodes, key=len, reverse=True):
        min(parts, key=len).extend(node)
    return sorted(parts, key=min)

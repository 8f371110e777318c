"""Topology of this machine, as far as this process may use it: cores, NUMA nodes, and a quota."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from fastcomm._machine.division import Cpu

_SYS = Path("/sys")
_PROC = Path("/proc")


def cpus(sys: Path = _SYS, allowed: Collection[int] | None = None) -> list[Cpu]:
    """Return the hardware threads that this thread may run on.

    What the kernel does not tell is taken as simple: each hardware thread is a core, and all lie on
    one node.

    Args:
        sys: the folder that is usually ``/sys``.
        allowed: their numbers; None for the affinity mask of this thread.
    """
    numbers = os.sched_getaffinity(0) if allowed is None else allowed
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sorted(sys.glob("devices/system/node/node[0-9]*"))
        for cpu in _listed(folder / "cpulist")
    }
    return [Cpu(cpu, _core(sys, cpu), node_of.get(cpu, 0)) for cpu in sorted(numbers)]


def quota(sys: Path = _SYS, proc: Path = _PROC) -> float | None:
    """Return how many processors the control groups let this process use at once, or None.

    The least of all groups from this process's own up to the root that is visible here counts, of
    version 2 and 1.

    Args:
        sys: the folder that is usually ``/sys``.
        proc: the folder that is usually ``/proc``.
    """
    limits = [
        limit
        for group in _groups(sys, proc)
        for limit in (_limit_v2(group), _limit_v1(group))
        if limit is not None
    ]
    return min(limits, default=None)


def parse_list(text: str) -> list[int]:
    """Return the numbers in a list of the kernel's, such as ``0-3,8``.

    Raises:
        ValueError: it is no such list.
    """
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
    return found


def _listed(path: Path) -> list[int]:
    with contextlib.suppress(OSError, ValueError):
        return parse_list(path.read_text())
    return []


def _core(sys: Path, cpu: int) -> int:
    """Return the first hardware thread of a physical core, whether or not it may be used."""
    folder = sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second before Linux 5.3
        if siblings := _listed(folder / name):
            return min(siblings)
    return cpu


def _groups(sys: Path, proc: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, up to the roots."""
    root = sys / "fs" / "cgroup"
    bases = [(root, "/")]
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" and not controllers:
                bases += [(root, path), (root / "unified", path)]
            elif "cpu" in controllers.split(","):
                bases += [(root / name, path) for name in (controllers, "cpu")]
    for base, path in bases:
        group = Path(os.path.normpath(path.lstrip("/")))
        # In a container the path may be the host's: then only the root is there.
        yield from (base / part for part in (group, *group.parents))


def _limit_v2(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        most, period = (group / "cpu.max").read_text().split()
        if most != "max" and int(period) > 0:
            return int(most) / int(period)
    return None


def _limit_v1(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        most = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        if most > 0 and period > 0:
            return most / period
    return None

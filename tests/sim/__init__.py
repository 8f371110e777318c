"""A simulated accelerator for tests: the device type "sim", and a c10d backend in NCCL's place.

    import sim

    sim.load()
    tensor = torch.ones(4, device="sim:1")
    backend = sim.SimBackend(store, rank, size, timeout)

It is for the ranks that tests with the fixture ``simulated`` start: torch would keep the device
type in pytest's own process, and other tests would see it. The library's code is in
``tests/sim/csrc``. Devices do what they are given later, each stream in its order; operators run on
the CPU's kernels. A tensor's address is the device's: whoever reads or writes there as if it were
the host's is killed by SIGSEGV. Unordered uses of the same bytes are a hazard, which is found
whatever the timing: a rank that leaves one fails (`check`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sim import build
from sim.build import missing
from sim.loading import load, loaded

NAME = "simccl"

__all__ = [
    "NAME",
    "SimBackend",
    "build",
    "check",
    "hazards",
    "load",
    "loaded",
    "missing",
    "register_backend",
]


def SimBackend(
    store: Any, rank: int, size: int, timeout: timedelta, *, machine: str = "machine"
) -> Any:
    """Make a backend for tensors on simulated devices, with NCCL's habits; all ranks have to.

    Besides what every backend has: ``calls()`` counts operations by name, ``hang_next()`` keeps the
    next operation and all after it from ever ending, ``fail_next()`` lets the next one fail, and
    ``get_error()`` says whether the communicator has failed.

    Args:
        store: the ranks' own; nobody else may use its keys.
        rank: of this process.
        size: number of ranks.
        timeout: of every operation; forming the communicator counts as one.
        machine: where the rank's devices are. Two ranks of one machine need different devices.
    """
    return load().SimBackend(store, rank, size, timeout, machine)


def hazards() -> list[str]:
    """Return what was found to be unordered since the last call, in words."""
    found: list[str] = load().hazards()
    return found


def check() -> None:
    """Raise if a hazard was found; do nothing in a process without the simulation."""
    if loaded() and (found := hazards()):
        raise AssertionError(f"{len(found)} uses of memory without order:\n" + "\n".join(found))


def register_backend() -> None:
    """Make ``sim:simccl`` known to ``init_process_group``; harmless when repeated."""
    import torch.distributed as dist

    load()
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, SimBackend, devices=["sim"])

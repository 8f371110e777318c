"""MPI, through ``mpi4py``; of ranks that ``mpiexec`` has started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastcomm._measure.cases import Case
from fastcomm._measure.contenders import NotServedError
from peers.peer import Peer


class Mpi(Peer):
    """Its collectives, of all ranks.

    Args:
        label: as of `Contender`.
        missing: what it lacks here, or nothing.
    """

    def __init__(self, label: str, missing: str) -> None:
        super().__init__(label, None)
        self.failed = missing

    def call_of(self, case: Case) -> Callable[[], object]:
        from mpi4py import MPI

        world, buffers = MPI.COMM_WORLD, _arrays(case)
        known: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, buffers["buffer"]),
            "broadcast": lambda: world.Bcast(buffers["buffer"], 0),
            "all_gather_into_tensor": lambda: world.Allgather(buffers["part"], buffers["whole"]),
            "reduce_scatter_tensor": lambda: world.Reduce_scatter_block(
                buffers["whole"], buffers["part"]
            ),
            "barrier": world.Barrier,
        }
        if case.name not in known:
            raise NotServedError(f"{case.name} over MPI is not measured here")
        return known[case.name]


def _arrays(case: Case) -> dict[str, Any]:
    """Return a case's buffers as arrays in the same memory.

    Raises:
        NotServedError: MPI has no such element type.
    """
    found = {}
    for name, value in vars(case).items():
        if isinstance(value, torch.Tensor):
            if value.dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
                raise NotServedError(f"MPI has no elements of {value.dtype}")
            found[name] = value.numpy()
    return found

"""Peers that are no backends of torch's: they work on a case's buffers, without torch in between.

``python benchmarks/collectives.py --backends fastcomm,floor,mpi`` measures them beside fastcomm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

from fastcomm._measure import line_up
from peers import by_mpiexec
from peers.deepspeed import DeepSpeed
from peers.floor import Floor, SingleCopy
from peers.mpi import Mpi
from peers.peer import Peer
from peers.short_calls import Operator, OperatorEmpty, Prepared


def register() -> None:
    """Make them known to a sweep; in each of its processes."""
    kinds: dict[str, type[Peer]] = {
        "floor": Floor,
        "single-copy": SingleCopy,
        "deepspeed": DeepSpeed,
        "operator": Operator,
        "operator-empty": OperatorEmpty,
        "prepared": Prepared,
    }
    for name, kind in kinds.items():
        line_up.register(name, functools.partial(_with_control, kind))
    missing = by_mpiexec.missing()
    start = None if missing else by_mpiexec.start
    line_up.register("mpi", lambda label, _: Mpi(label, missing), start)


def _with_control(
    kind: Callable[[str, dist.ProcessGroup], Peer], label: str, _: torch.device
) -> Peer:
    """Make one with a group for what its ranks have to tell each other."""
    return kind(label, dist.new_group(backend="gloo"))

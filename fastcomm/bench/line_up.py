"""Who is compared in a sweep, by the names that are asked for.

A backend of torch's has its own: ``fastcomm``, ``gloo`` (of tensors on devices: through the host),
``nccl``. The others are in `OTHERS`; those on symmetric memory have all of all_reduce.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from fastcomm.bench import by_mpiexec
from fastcomm.bench.contenders import SYMMETRIC, Contender, Fake, Symmetric
from fastcomm.bench.floor import Floor, SingleCopy
from fastcomm.bench.peers import DeepSpeed, Mpi

FLOOR, SINGLE_COPY, MPI, DEEPSPEED, FAKE = "floor", "single-copy", "mpi", "deepspeed", "fake"
OTHERS = (FLOOR, SINGLE_COPY, MPI, DEEPSPEED, FAKE, *SYMMETRIC)


def label_backends(backends: Sequence[str]) -> list[str]:
    """Names of the backends in results; a repeated one is numbered: ``gloo``, ``gloo-2``."""
    labels: list[str] = []
    for index, backend in enumerate(backends):
        seen = list(backends[:index]).count(backend)
        labels.append(f"{backend}-{seen + 1}" if seen else backend)
    return labels


def make(backends: Sequence[str], device: torch.device) -> list[Contender]:
    """Make a contender of each backend; all ranks have to."""
    found: list[Contender] = []
    for label, backend in zip(label_backends(backends), backends, strict=True):
        if backend in SYMMETRIC:
            # For its store and its name; nothing is sent over it.
            found.append(Symmetric(label, dist.new_group(backend="gloo"), device))
        elif backend in (FLOOR, SINGLE_COPY):
            kind = Floor if backend == FLOOR else SingleCopy
            found.append(kind(label, dist.new_group(backend="gloo")))
        elif backend == MPI:
            found.append(Mpi(label, None))
            found[-1].failed = by_mpiexec.missing()
        elif backend == FAKE:
            # Torch's own; known once this is imported.
            importlib.import_module("torch.testing._internal.distributed.fake_pg")
            found.append(Fake(label, dist.new_group(backend=backend)))
        elif backend == DEEPSPEED:
            found.append(DeepSpeed(label, dist.new_group(backend="gloo")))
        elif backend == "nccl" and not dist.is_nccl_available():
            found.append(Contender(label, None))
            found[-1].failed = "this torch has no NCCL"
        elif backend == "fastcomm" and device.type != "cpu":
            name = f"cpu:fastcomm,{device.type}:fastcomm"
            found.append(Contender(label, dist.new_group(backend=name)))
        else:
            found.append(Contender(label, dist.new_group(backend=backend)))
    return found

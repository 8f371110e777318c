"""fastcomm: a torch.distributed backend for the ranks of one host.

    import torch.distributed as dist
    dist.init_process_group("fastcomm")

``import torch`` alone makes the backend known, and so does ``import fastcomm``. torch imports
this package while torch itself is only half imported, so nothing here may load the native library
or fail: every public name is looked up when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fastcomm import _register

if TYPE_CHECKING:
    from fastcomm._explain import explain
    from fastcomm._native import NativeLibraryError, is_available
    from fastcomm._use import use
    from fastcomm.barrier import monitored_barrier
    from fastcomm.data_parallel import DataParallel, DataParallelCriterion
    from fastcomm.ddp import DistributedDataParallel
    from fastcomm.errors import (
        CollectiveArgumentError,
        CollectiveMismatchError,
        CollectiveTimeoutError,
        CommunicationSystemError,
        FastcommError,
        ForkedProcessError,
        GroupPoisonedError,
        PeerLeftError,
        PeerLostError,
        UnsupportedError,
    )
    from fastcomm.fused import clip_grad_norm_, combined_norm, fused_all_reduce_
    from fastcomm.grad_scaler import GradScaler
    from fastcomm.memory import empty, is_shared
    from fastcomm.sharded_optimizer import ShardedOptimizer
    from fastcomm.shards import fused_reduce_scatter_, gather_shards_

__version__ = "0.1.0"

__all__ = [
    "CollectiveArgumentError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "CommunicationSystemError",
    "DataParallel",
    "DataParallelCriterion",
    "DistributedDataParallel",
    "FastcommError",
    "ForkedProcessError",
    "GradScaler",
    "GroupPoisonedError",
    "NativeLibraryError",
    "PeerLeftError",
    "PeerLostError",
    "ShardedOptimizer",
    "UnsupportedError",
    "__version__",
    "clip_grad_norm_",
    "combined_norm",
    "empty",
    "explain",
    "fused_all_reduce_",
    "fused_reduce_scatter_",
    "gather_shards_",
    "is_available",
    "is_shared",
    "monitored_barrier",
    "use",
]

_MODULE_OF = {
    "CollectiveArgumentError": "fastcomm.errors",
    "CollectiveMismatchError": "fastcomm.errors",
    "CollectiveTimeoutError": "fastcomm.errors",
    "CommunicationSystemError": "fastcomm.errors",
    "DataParallel": "fastcomm.data_parallel",
    "DataParallelCriterion": "fastcomm.data_parallel",
    "DistributedDataParallel": "fastcomm.ddp",
    "FastcommError": "fastcomm.errors",
    "ForkedProcessError": "fastcomm.errors",
    "GradScaler": "fastcomm.grad_scaler",
    "GroupPoisonedError": "fastcomm.errors",
    "NativeLibraryError": "fastcomm._native",
    "PeerLeftError": "fastcomm.errors",
    "PeerLostError": "fastcomm.errors",
    "ShardedOptimizer": "fastcomm.sharded_optimizer",
    "UnsupportedError": "fastcomm.errors",
    "clip_grad_norm_": "fastcomm.fused",
    "combined_norm": "fastcomm.fused",
    "empty": "fastcomm.memory",
    "explain": "fastcomm._explain",
    "fused_all_reduce_": "fastcomm.fused",
    "fused_reduce_scatter_": "fastcomm.shards",
    "gather_shards_": "fastcomm.shards",
    "is_available": "fastcomm._native",
    "is_shared": "fastcomm.memory",
    "monitored_barrier": "fastcomm.barrier",
    "use": "fastcomm._use",
}


_MODULES = (
    "barrier",
    "comm",
    "data_parallel",
    "ddp",
    "env",
    "errors",
    "functions",
    "fused",
    "memory",
    "parallel_apply",
    "replicate",
    "scatter_gather",
    "shards",
)


def __getattr__(name: str) -> object:
    """Import the module that holds a public name when the name is first used (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


_register.autoload()

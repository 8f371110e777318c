"""Note which operations of a process group a rank calls, how, and with which types of tensors.

That is what a backend must do. Only calls from Python are seen: DDP's reducer calls from C++.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

# The methods of torch.distributed.ProcessGroup that a backend carries out.
METHODS = [
    *("allgather", "allgather_coalesced", "allreduce", "allreduce_coalesced", "alltoall"),
    *("barrier", "broadcast", "gather", "monitored_barrier", "recv", "recv_anysource", "reduce"),
    *("reduce_scatter", "scatter", "send", "_start_coalescing", "_end_coalescing"),
    # For one tensor, by the names of torch 2.13 and of earlier versions.
    *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("_allgather_base", "allgather_into_tensor_coalesced", "alltoall_base"),
    *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
]


def install(seen: set[str]) -> None:
    """Add a line to ``seen`` for each way in which an operation is called in this process."""
    for name in METHODS:
        if hasattr(dist.ProcessGroup, name):
            setattr(dist.ProcessGroup, name, _noting(name, getattr(dist.ProcessGroup, name), seen))


def _noting(name: str, method: Any, seen: set[str]) -> Any:
    @functools.wraps(method)
    def noting(group: Any, *arguments: Any, **named: Any) -> Any:
        told = [text for value in (*arguments, *named.values()) for text in _described(value)]
        seen.add(f"{name}({', '.join(dict.fromkeys(told))})")
        return method(group, *arguments, **named)

    return noting


def _described(value: object) -> list[str]:
    if isinstance(value, torch.Tensor):
        return [_type_of(value)]
    if isinstance(value, (list, tuple)):
        return [text for part in value for text in _described(part)]
    if isinstance(value, (int, bool)):
        return [repr(value)]
    if isinstance(value, dist.ReduceOp):
        return [_name_of(value)]
    told = [_name_of(value.reduceOp)] if hasattr(value, "reduceOp") else []
    if getattr(value, "asyncOp", False):
        told.append("async")
    return told


def _name_of(reduction: Any) -> str:
    return str(getattr(reduction, "op", reduction)).split(".")[-1]


def _type_of(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided:
        return f"{name} {str(tensor.layout).removeprefix('torch.')}"
    if tensor.dim() == 0:
        name += " scalar"
    return name if tensor.is_contiguous() else f"{name} not contiguous"

"""The division of `DataParallel`'s work: its devices, and a share for each."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module

from fastcomm._devices.slots import CPU, Device, accelerator, check_list, index_of, kind_of, slots
from fastcomm.nn.parallel._members import tensors_of
from fastcomm.nn.parallel.scatter_gather import first_tensor


def places_of(device_ids: Sequence[Device] | None) -> list[torch.device]:
    """Return the devices; none where the module is to run as it is."""
    if device_ids is None:
        kind = accelerator()
        if kind is None or kind == "mps":
            return []
        return [torch.device(kind, i) for i in range(torch.accelerator.device_count())]
    check_list(device_ids)
    if accelerator() is None and "cpu" not in list(map(kind_of, device_ids)):
        return []
    return slots(device_ids)


@functools.cache
def say_where_it_runs() -> None:
    """Warn, once in a process and where the user's code is, that there will be no replicas."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        "torch finds no accelerator here, so DataParallel runs its module as it is. For replicas "
        'on the CPU say where: DataParallel(module, device_ids=["cpu", "cpu"])',
        RuntimeWarning,
        stacklevel=level,
    )


def _is_ours(name: str) -> bool:
    return name.startswith("fastcomm.")


def as_given(place: torch.device) -> int | str:
    """Return a device as torch's attributes have it: a number; CPU slots by name."""
    return "cpu" if place == CPU else index_of(place)


def check_placement(module: Module, place: torch.device) -> None:
    for tensor in tensors_of(module):
        if tensor.device != place:
            raise RuntimeError(
                "module must have its parameters and buffers "
                f"on device {place} (device_ids[0]) but found one of "
                f"them on device: {tensor.device}"
            )


def check_chunk_sizes(sizes: Sequence[int], count: int) -> None:
    if len(sizes) != count:
        raise ValueError(f"{len(sizes)} chunk_sizes for {count} devices")
    if any(size <= 0 for size in sizes):
        raise ValueError(f"chunk_sizes must be positive, not {list(sizes)}")


def proportional(total: int, weights: Sequence[int]) -> list[int]:
    """Divide ``total`` in proportion to ``weights``, by largest remainders; zeros come last."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    rest = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in rest[: total - sum(shares)]:
        shares[i] += 1
    for i in range(min(total, len(shares))):  # the first get one each
        if shares[i] == 0:
            shares[shares.index(max(shares))] -= 1
            shares[i] = 1
    return shares


def batch_size(arguments: Any, dim: int) -> int:
    """Return the size of the first tensor that is cut along ``dim``; 1 without one."""
    tensor = first_tensor(arguments)
    return 1 if tensor is None else tensor.size(dim)


def weighted(losses: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    """Weight means over parts so that their mean is the mean over the whole."""
    if len(set(sizes)) == 1:
        return list(losses)
    total = sum(sizes)
    return [loss * (size * len(sizes) / total) for loss, size in zip(losses, sizes, strict=True)]

"""Gradients on devices that are reduced in the host's memory: copies there, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies on the CPU, with the same strides, of what is on a device.

    All else is returned as it is: what is on the CPU already, and what is to be refused.
    """
    return [_copy_of(t) if _is_elsewhere(t) else t for t in tensors]


def are_elsewhere(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether there are any tensors, all of them on one device that is not the CPU."""
    devices = {tensor.device for tensor in tensors}
    return len(devices) == 1 and all(_is_elsewhere(tensor) for tensor in tensors)


def bring_back(copies: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Write the copies that `copies_of` made back to their tensors, on the current stream."""
    with torch.no_grad():
        for copy, tensor in zip(copies, tensors, strict=True):
            if copy is not tensor:
                tensor.copy_(copy)


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta") and tensor.layout == torch.strided


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return copy  # it overlaps itself, so it is refused, and so is the copy
    return copy.copy_(tensor.detach())

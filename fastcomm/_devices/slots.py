"""Places of replicas: devices of the accelerator, or slots of the CPU; each may repeat."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TypeAlias

import torch

from fastcomm import _native

Device: TypeAlias = int | str | torch.device
CPU = torch.device("cpu")


def accelerator() -> str | None:
    """Return the type of this machine's accelerator, ``"cuda"`` for example; None without one."""
    if not torch.accelerator.is_available():
        return None
    current = torch.accelerator.current_accelerator()
    return None if current is None else current.type


@functools.cache
def served() -> str:
    """Return the type of the devices that our kernels serve: ``"cuda"``, except in simulations.

    A library without kernels for devices serves none; then torch does the work, on ``"cuda"``.
    """
    return _native.load().accelerator_type() or "cuda"


def slot(device: Device | None) -> torch.device:
    """Return a device with its index.

    Args:
        device: an index of the accelerator's, -1 for the CPU, a name, a ``torch.device``; None for
            the current accelerator, or the CPU where there is none.

    Raises:
        RuntimeError: a device that is not here, or a name that torch does not know.
        TypeError: an object that names no device.
        ValueError: the meta device, which has no memory.
    """
    if device is None:
        return CPU if accelerator() is None else _accelerator_slot(None)
    if isinstance(device, int):
        return CPU if kind_of(device) == "cpu" else _accelerator_slot(device)
    found = torch.device(device)
    if kind_of(found) == "cpu":
        return CPU
    if accelerator() is None:
        raise RuntimeError(f"device {found} was asked for, but torch finds no accelerator here")
    if found.type == accelerator():
        return _accelerator_slot(found.index)
    return found


def kind_of(device: Device | None) -> str:
    """Return a device's type, even of one that is not here.

    Raises:
        RuntimeError: an index below -1, or a name that torch does not know.
        TypeError: an object that names no device.
        ValueError: the meta device, which has no memory.
    """
    if device is None:
        return accelerator() or "cpu"
    if isinstance(device, bool):
        raise TypeError(f"a device is a number, a name or a torch.device, not {device}")
    if isinstance(device, int):
        if device < -1:
            raise RuntimeError(
                f"Expected non-negative device index, or -1 for the CPU, but got {device}"
            )
        return "cpu" if device == -1 else accelerator() or served()
    kind: str = torch.device(device).type
    if kind == "meta":
        raise ValueError("Expected a device with memory, but got: meta")
    return kind


def check_list(devices: object) -> None:
    """Raise TypeError for one device, or for a count, in place of a list of devices."""
    if isinstance(devices, int | str | torch.device):
        raise TypeError(
            f"devices are a list, such as [{devices!r}], not {devices!r}: two replicas live on "
            '[0, 1], or on ["cpu", "cpu"]'
        )


def slots(devices: Iterable[Device]) -> list[torch.device]:
    """Return devices with their indices, in order; one may occur several times.

    Raises:
        TypeError: one device instead of a list.
        RuntimeError, TypeError, ValueError: as in `slot`.
    """
    check_list(devices)
    return [slot(device) for device in devices]


def index_of(device: torch.device) -> int:
    """Return torch's number of a device: its index, -1 for the CPU."""
    return -1 if device.type == "cpu" else int(device.index)


def _accelerator_slot(index: int | None) -> torch.device:
    kind = accelerator()
    if kind is None:
        raise RuntimeError(
            f"device {index} was asked for, but torch finds no accelerator here; "
            'replicas on the CPU are "cpu", once for each'
        )
    if index is None:
        return torch.device(kind, torch.accelerator.current_device_index())
    if not torch.compiler.is_compiling() and index >= torch.accelerator.device_count():
        raise RuntimeError(
            f"device {index} was asked for, but the devices of type {kind} here are "
            f"{torch.accelerator.device_count()}"
        )
    return torch.device(kind, index)

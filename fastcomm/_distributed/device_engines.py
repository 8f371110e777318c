"""Torch's backends for tensors on a type of device.

``csrc/c10d/choose/choose.h`` asks at a group's first tensor on such a device. NCCL for "cuda",
where this torch has it; tests register their own.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

logger = logging.getLogger("fastcomm")


@dataclass(frozen=True)
class Factory:
    """The way in which a backend for a type of device is made.

    Attributes:
        name: what messages call it.
        make: called with store, rank, size and timeout; must not wait for other ranks.
        identify: returns a text that no other device of any machine has.
        count: returns how many devices this process sees.
    """

    name: str
    make: Callable[[dist.Store, int, int, timedelta], Any]
    identify: Callable[[torch.device], str]
    count: Callable[[], int] = lambda: 1


_factories: dict[str, Factory] = {}


def register(device_type: str, factory: Factory | None) -> None:
    """Set what serves tensors on such devices in groups that meet them later; None for nothing."""
    if factory is None:
        _factories.pop(device_type, None)
    else:
        _factories[device_type] = factory


def any_known() -> bool:
    """Tell whether there is a backend for any device that this process sees.

    Where there is one, torch's batches of messages behave differently: an exception in a batch
    silently leaves the group unusable for ``all_reduce``. Programs without devices must not get
    that merely from a torch built for CUDA.
    """
    return any(factory.count() for factory in _factories.values())


def known(device_type: str) -> bool:
    """Tell whether there is a backend for devices of this type."""
    return device_type in _factories


def name_of(device_type: str) -> str | None:
    """Return the name of the backend for devices of this type, None without one."""
    return _factories[device_type].name if device_type in _factories else None


def besides() -> str:
    """Return what serves tensors on the devices of this process in a group of Gloo's, in words."""
    seen = [(kind, each.name) for kind, each in _factories.items() if each.count()]
    return "".join(f"; tensors on {kind} go to {name}, if all ranks have it" for kind, name in seen)


def identify(device: torch.device) -> str:
    """Return a text that no other device of any machine has."""
    return _factories[device.type].identify(device)


def make(
    device: torch.device, store: dist.Store, rank: int, size: int, timeout_s: float
) -> tuple[str, Any]:
    """Return the name of a backend for a device, and a new one for a group; wait for nobody."""
    factory = _factories[device.type]
    return factory.name, factory.make(store, rank, size, timedelta(seconds=timeout_s))


def say_why_not(device_type: str, size: int, why: str) -> None:
    """Warn that tensors on such devices are copied through the host's memory."""
    logger.warning(
        "this group of %d ranks sends tensors on %s through the host's memory: %s",
        size,
        device_type,
        why,
    )


def say_why_not_direct(device_type: str, size: int, other: str, why: str) -> None:
    """Warn that devices do not use each other's memory, and who serves them instead."""
    logger.warning(
        "the devices of this group of %d ranks do not use each other's memory, %s serves tensors "
        "on %s: %s",
        size,
        other,
        device_type,
        why,
    )


def warn_of_display(device: torch.device, timeout_s: float) -> None:
    """Warn that a device ends kernels which wait long for another rank."""
    logger.warning(
        "%s drives a display, and the driver ends kernels there that take longer than some "
        "seconds. A rank of this group may wait for another one until the group's timeout of "
        "%.0f s: its process would lose the device ('the launch timed out and was terminated'). "
        "Use a device without a display, end the display's server, or set "
        'Option "Interactive" "off" for the device in xorg.conf',
        device,
        timeout_s,
    )


# By default torch's NCCL watchdog ends the process when it finds a failure or is stuck itself.
# fastcomm has its own death watch, which ends NCCL and raises.
_LEAVES_THE_PROCESS_ALONE = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _make_nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with _environment(_LEAVES_THE_PROCESS_ALONE):
        return dist.ProcessGroupNCCL(store, rank, size, options)


def _cuda_device(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


if dist.is_nccl_available():
    register("cuda", Factory("NCCL", _make_nccl, _cuda_device, torch.cuda.device_count))

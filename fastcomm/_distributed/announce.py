"""What a group's ranks are told about it where torch is asked to be talkative."""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from fastcomm import _native, _settings
from fastcomm._machine import tuning

if TYPE_CHECKING:
    from fastcomm._C import FastcommBackend

logger = logging.getLogger("fastcomm")

_TALKATIVE = ("INFO", "0")  # of TORCH_CPP_LOG_LEVEL


def announce(backend: FastcommBackend, label: str, timeout: timedelta) -> None:
    """Tell the engine of a group, why, its memory, timeout, and settings that are not the default.

    Once a group, by its first rank, at INFO of the logger ``fastcomm``. Where nobody listens to
    that, and ``TORCH_CPP_LOG_LEVEL=INFO`` or ``TORCH_DISTRIBUTED_DEBUG`` is INFO or DETAIL, on
    standard error.

    Args:
        backend: the group's.
        label: the start of the group's warnings, which names the rank and the group.
        timeout: the group's.
    """
    if backend.rank() != 0:
        return
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", label + describe(backend, timeout))
    elif _is_wanted():
        print(label + describe(backend, timeout), file=sys.stderr, flush=True)


def describe(backend: FastcommBackend, timeout: timedelta) -> str:
    """Return what `announce` tells."""
    parts = [_engine(backend), f"timeout {timeout.total_seconds():g} s"]
    changed = _settings.changed()
    parts += [f"{name}={value} (default {default})" for name, value, default in changed]
    if os.environ.get(tuning.SWITCH) != "off" and tuning.read():
        parts.append(f"values of fastcomm tune from {tuning.file()}")
    return "; ".join(parts)


def _engine(backend: FastcommBackend) -> str:
    if not backend.native:
        return f"Gloo does everything: {backend.why_not_native}"
    if backend.size() == 1:
        return "one rank, which exchanges nothing"
    most = _native.load().environment()["FASTCOMM_SEGMENT_MB"]
    return (
        f"{backend.transport}; slots of up to {backend.slot_bytes / 2**20:.1f} MiB a rank, as "
        f"they are used, within the {most} MiB of FASTCOMM_SEGMENT_MB"
    )


def _is_wanted() -> bool:
    return (
        os.environ.get("TORCH_CPP_LOG_LEVEL", "").upper() in _TALKATIVE
        or dist.get_debug_level() != dist.DebugLevel.OFF
    )

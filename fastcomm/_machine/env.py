"""What fastcomm sees of this machine and process: ``fastcomm env``."""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import platform
import warnings
from typing import Any

from fastcomm import _native
from fastcomm._machine import settings
from fastcomm._version import __version__


@functools.cache
def warn_of_unknown_settings() -> None:
    """Warn of each FASTCOMM_ variable that nothing reads, mostly a typo; once per process.

    And of values that Python's settings cannot have. With native ones that is an error of the call
    that reads them.
    """
    for wrong in settings.wrong_of_python():
        warnings.warn(f"{wrong}; taken as not set", RuntimeWarning, stacklevel=2)
    known = [*_native.load().environment(), *settings.OF_PYTHON]
    for name in sorted(os.environ):
        if name.startswith("FASTCOMM_") and name not in known:
            like = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {like[0]}? " if like else ""
            warnings.warn(
                f"{name} is set, and fastcomm has no such setting: {meant}"
                "'fastcomm env' lists them",
                RuntimeWarning,
                stacklevel=2,
            )


def collect() -> dict[str, Any]:
    """Return versions, build, processor, CUDA devices and settings.

    Where several CUDA devices are visible, their access to each other's memory is tried, once per
    process. Where the native library does not load, ``native`` says why.

    Raises:
        RuntimeError: a setting has a value that it cannot have.
    """
    found: dict[str, Any] = {
        "fastcomm": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    reason = _native.unavailable_reason()
    if reason is not None:
        found["native"] = f"not available: {reason}"
        return found
    import torch

    native = _native.load()
    build = importlib.import_module("fastcomm._build_info")
    found["torch"] = torch.__version__
    found["native"] = "available"
    found["build"] = {
        name.lower(): getattr(build, name) for name in sorted(dir(build)) if name.isupper()
    }
    found["usable cores"] = native.usable_cores()
    found["instruction set"] = native.reduce_isa()
    found["CUDA devices"] = _cuda_devices(native)
    found["settings"] = native.environment()
    found["set in the environment"] = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("FASTCOMM_") or name == "DDP_DISABLE_COMM_MEM"
    }
    return found


def _cuda_devices(native: Any) -> dict[str, str] | str:
    """Return each device's name, and how it reaches the others' memory; or why there is none."""
    import torch

    from fastcomm._devices.slots import served

    if torch.get_device_module(served())._is_in_bad_fork():
        return "not asked: CUDA does not work in a child of fork()"
    try:
        seen = native.cuda_devices()
    except Exception as error:  # a device that fails is what the reader looks for
        return f"asking fails: {error}"
    if seen["reason"]:
        return str(seen["reason"])
    lines = {str(device): name for device, name in enumerate(seen["names"])}
    for device, row in enumerate(seen["access"]):
        for peer, (kind, reason) in enumerate(row):
            if peer != device:
                lines[f"{device} to {peer}"] = f"{kind}: {reason}"
    return lines


def format_text(found: dict[str, Any]) -> str:
    """Return :func:`collect`'s answer as lines of text."""
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines.extend(f"  {key} = {item}" for key, item in value.items())
        else:
            lines.append(f"{name}: {value}")
    return "\n".join(lines)

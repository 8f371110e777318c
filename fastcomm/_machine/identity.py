"""Findings about this machine, kept from one program to the next.

Files of JSON in ``fastcomm/`` of ``$XDG_CACHE_HOME`` or ``~/.cache``, each with values for every
machine that the user's home is on. A machine is its id, its NVIDIA driver, its GPUs and where they
are plugged in, and the versions of torch and of fastcomm's native code: if one of them changes,
nothing is known. No device is asked, so a program that needs none gets no device context.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastcomm._version import __version__

DRIVER = Path("/proc/driver/nvidia")
_ID = Path("/etc/machine-id")
# Not its interrupt number, nor what the driver does not know before somebody uses the GPU.
_OF_A_GPU = re.compile(r"^(?:Model|Bus Location):.*$", re.MULTILINE)


def file(name: str) -> Path:
    """Return where ``name`` is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "fastcomm" / name


def gpus() -> list[str]:
    """Return what the driver says of each GPU of the machine, including those not visible."""
    found = []
    for path in sorted(DRIVER.glob("gpus/*/information")):
        with contextlib.suppress(OSError):
            found.append("\n".join(_OF_A_GPU.findall(path.read_text())))
    return found


def identity() -> str:
    """Return the key that stands for this machine."""
    import torch

    parts = [__version__, str(torch.__version__)]
    with contextlib.suppress(ImportError, AttributeError):
        parts.append(importlib.import_module("fastcomm._build_info").SOURCES)
    for path in (_ID, DRIVER / "version"):
        with contextlib.suppress(OSError):
            parts.append(path.read_text())
    return hashlib.sha256("\0".join([*parts, *gpus()]).encode()).hexdigest()[:16]


def read(name: str) -> dict[str, Any]:
    """Return what is known of this machine; empty where there is no readable file."""
    found = _of_all(name).get(identity())
    return found if isinstance(found, dict) else {}


def write(name: str, values: Mapping[str, Any]) -> None:
    """Record what is known of this machine, replacing what was; empty: nothing is known any more.

    Raises:
        OSError: the file cannot be written.
    """
    path, everything = file(name), _of_all(name)
    everything.pop(identity(), None)
    if values:
        everything[identity()] = dict(values)
    elif not path.exists():
        return
    write_whole(path, json.dumps(everything, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file, making its folder if there is none, so that nobody reads half of it.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as stream:
        stream.write(text)
    try:
        os.replace(stream.name, path)
    except OSError:
        os.unlink(stream.name)
        raise


def _of_all(name: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file(name).read_text())
        if isinstance(found, dict):
            return found
    return {}

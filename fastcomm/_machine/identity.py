"""Findings about this machine, kept from one program to the next.

They are files of JSON in ``fastcomm/`` of ``$XDG_CACHE_HOME`` or ``~/.cache``. Machines may share
the folder, so each file has values for each machine. The key of a machine is a hash of its id, its
NVIDIA driver, its GPUs and their slots, and the versions of torch, of fastcomm and of its native
code: if one of these changes, earlier findings no longer apply. No device is asked, so no
device context is made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastcomm import _build
from fastcomm._version import __version__

DRIVER = Path("/proc/driver/nvidia")
_ID = Path("/etc/machine-id")
# Other fields may change: the interrupt number, and those unknown until the GPU is used.
_STABLE_FIELDS = re.compile(r"^(?:Model|Bus Location):.*$", re.MULTILINE)


def file(name: str) -> Path:
    """Return the path of the file ``name``."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "fastcomm" / name


def gpus() -> list[str]:
    """Return a text from the driver for each GPU of the machine, including those not visible."""
    found = []
    for path in sorted(DRIVER.glob("gpus/*/information")):
        with contextlib.suppress(OSError):
            found.append("\n".join(_STABLE_FIELDS.findall(path.read_text())))
    return found


def identity() -> str:
    """Return the key that stands for this machine."""
    import torch

    parts = [__version__, str(torch.__version__)]
    with contextlib.suppress(ImportError, AttributeError):
        parts.append(_build.info().SOURCES)
    for path in (_ID, DRIVER / "version"):
        with contextlib.suppress(OSError):
            parts.append(path.read_text())
    return hashlib.sha256("\0".join([*parts, *gpus()]).encode()).hexdigest()[:16]


def read(name: str) -> dict[str, Any]:
    """Return what is known of this machine; empty where there is no readable file."""
    found = _of_all(name).get(identity())
    return found if isinstance(found, dict) else {}


def write(name: str, values: Mapping[str, Any]) -> None:
    """Replace what is known of this machine; empty ``values`` remove it.

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
    """Write a file atomically, so that no reader sees half of it; make its folder if missing.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x") as stream:  # with the mode that other new files have
            stream.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _of_all(name: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file(name).read_text())
        if isinstance(found, dict):
            return found
    return {}

"""What ``python -m fastcomm check`` has found wrong on this machine, for process groups to obey.

One file for a user, ``fastcomm/verdicts.json`` in ``$XDG_CACHE_HOME`` or ``~/.cache``, with the
settings that lead around what was wrong, for each machine that was checked. A machine is its
driver, its GPUs, and the versions of torch and fastcomm: where one of them changes, nothing is
obeyed until it is checked again. ``FASTCOMM_VERDICTS=off`` obeys nothing, and a variable that is
set keeps its value. What was right is not recorded: every group tries for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from fastcomm import __version__

logger = logging.getLogger("fastcomm")

SWITCH = "FASTCOMM_VERDICTS"
_DRIVER = Path("/proc/driver/nvidia")


def file() -> Path:
    """Return where verdicts are."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "fastcomm" / "verdicts.json"


def machine() -> str:
    """Return what stands for this machine; no device is asked for it."""
    import torch

    parts = [__version__, str(torch.__version__)]
    for path in (_DRIVER / "version", *sorted(_DRIVER.glob("gpus/*/information"))):
        with contextlib.suppress(OSError):
            parts.append(path.read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read() -> dict[str, str]:
    """Return the settings for this machine; nothing where there is no file, or none to be read."""
    try:
        found = json.loads(file().read_text())[machine()]
        return {str(name): str(value) for name, value in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write(settings: dict[str, str]) -> None:
    """Put down the settings for this machine, in place of those before; none: it obeys nothing.

    Raises:
        OSError: the file cannot be written.
    """
    path = file()
    everything: Any = {}
    with contextlib.suppress(OSError, ValueError):
        everything = json.loads(path.read_text())
    if not isinstance(everything, dict):
        everything = {}
    everything.pop(machine(), None)
    if settings:
        everything[machine()] = settings
    elif not path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # As a whole: another process may read.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as stream:
        json.dump(everything, stream, indent=1)
    os.replace(stream.name, path)


def obey() -> None:
    """Set the environment variables of this machine's verdicts, where the user has not."""
    if os.environ.get(SWITCH) == "off":
        return
    for name, value in read().items():
        if name.startswith("FASTCOMM_") and name not in os.environ:
            os.environ[name] = value
            logger.warning(
                "%s=%s, since 'python -m fastcomm check' has found something wrong without (%s)",
                name,
                value,
                file(),
            )

"""Load the simulated accelerator into this process."""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import importlib.util
import time
from pathlib import Path
from typing import Any

from sim import build


@functools.cache
def load() -> Any:
    """Build the library if need be, and give torch the device type "sim" and ``torch.sim``.

    Returns the library's module. For the life of the process: torch forgets no device type.
    """
    import torch

    from sim import device

    path = str(build.library())
    loader = importlib.machinery.ExtensionFileLoader(build.MODULE, path)
    spec = importlib.util.spec_from_file_location(build.MODULE, path, loader=loader)
    assert spec
    native = importlib.util.module_from_spec(spec)
    loader.exec_module(native)
    device.native = native
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", device)
    torch.utils.generate_methods_for_privateuse1_backend()
    atexit.register(_let_autograd_end)
    return native


def _let_autograd_end() -> None:
    """Wait until autograd's threads sleep.

    A device's thread drops the graph after ``backward()`` has returned, and wants the GIL for it.
    torch aborts the process where the interpreter ends meanwhile: on a device as fast as this one,
    scripts whose last line is a ``backward()`` would hit that every other time.
    """
    deadline = time.monotonic() + 5
    asleep = 0
    while asleep < 3 and time.monotonic() < deadline:
        time.sleep(0.002)  # lets the GIL go
        asleep = asleep + 1 if all(map(_sleeps, Path("/proc/self/task").iterdir())) else 0


def _sleeps(task: Path) -> bool:
    try:
        name, _, state = (task / "stat").read_text().rpartition(")")
    except OSError:
        return True  # it has ended
    return "(pt_autograd" not in name or state.split()[0] == "S"

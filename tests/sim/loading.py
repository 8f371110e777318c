"""Load the simulated accelerator into this process."""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

from sim import build


@functools.cache
def load() -> Any:
    """Build the library if need be, and give torch the device type "sim" and ``torch.sim``.

    From then on the library is ``fastcomm._C``: nothing native may have been loaded before. Returns
    the simulation's own module. This lasts as long as the process: torch forgets no device type.
    """
    import torch

    from sim import device

    if "fastcomm._C" in sys.modules:
        raise RuntimeError("sim.load() comes too late: fastcomm's library is loaded already")
    path = str(build.library())
    native = _module("_sim", path)
    device.native = native
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", device)
    torch.utils.generate_methods_for_privateuse1_backend()
    import fastcomm

    sys.modules["fastcomm._C"] = fastcomm._C = _module("fastcomm._C", path)
    atexit.register(_end, os.getpid())
    return native


def loaded() -> bool:
    """Tell whether this process has the simulation."""
    return load.cache_info().currsize > 0


def _module(name: str, path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _end(owner: int) -> None:
    if os.getpid() != owner:
        return  # a child of fork() has none of the threads
    _let_autograd_end()
    native = load()
    for index in range(native.device_count()):
        native.synchronize(index)


def _let_autograd_end() -> None:
    """Wait until autograd's threads sleep.

    A device's thread drops the graph after ``backward()`` has returned, and wants the GIL for it.
    torch aborts the process where the interpreter ends meanwhile: on a device as fast as this one,
    scripts whose last line is a ``backward()`` would hit that every other time.
    """
    deadline = time.monotonic() + 60
    asleep = 0
    while asleep < 3 and time.monotonic() < deadline:
        time.sleep(0.002)  # releases the GIL
        asleep = asleep + 1 if all(map(_sleeps, Path("/proc/self/task").iterdir())) else 0


def _sleeps(task: Path) -> bool:
    try:
        name, _, state = (task / "stat").read_text().rpartition(")")
    except OSError:
        return True  # the thread has ended
    return "(pt_autograd" not in name or state.split()[0] == "S"

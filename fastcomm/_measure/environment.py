"""The machine and the software of a run, so that its results can be judged later.

Results are published: nothing here may name the host, the user or a folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import fastcomm
from fastcomm import _build

_DRIVER = Path("/proc/driver/nvidia/version")


def describe(command: Sequence[str]) -> dict[str, Any]:
    """The environment as values for JSON; ``command`` has the words of the command line."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(hide_paths(word) for word in command),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fastcomm": fastcomm.__version__,
        "build": build_info(),
        "gpus": gpus(),
        "variables": {
            name: hide_paths(value)
            for name, value in sorted(os.environ.items())
            if name.startswith("FASTCOMM_") or name in ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")
        },
    }


def summary_line(environment: dict[str, Any]) -> str:
    """One line for titles: processor, cores, GPUs, versions, date."""
    cards = environment.get("gpus") or {}
    names = cards.get("names", [])
    seen = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    return (
        f"{environment.get('cpu', '?')}, {environment.get('affinity', '?')} cores, "
        f"{''.join(f'{card}, ' for card in seen)}"
        f"torch {environment.get('torch', '?')}, fastcomm {environment.get('fastcomm') or '?'}, "
        f"{str(environment.get('date', '?'))[:10]}"
    )


def hide_paths(text: str) -> str:
    """``text`` with ``<path>`` for every word that starts with ``/``, ``~`` or ``../``."""
    words = re.split(r"([\s=,:;'\"]+)", text)
    return "".join("<path>" if re.match(r"/|~|\.\./", word) else word for word in words)


def cpu_model() -> str:
    """The processor's name as Linux gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def gpus() -> dict[str, Any] | None:
    """Names of the visible GPUs, versions of CUDA, driver and NCCL; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    found: dict[str, Any] = {
        "names": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
    }
    with contextlib.suppress(OSError, IndexError):
        found["driver"] = re.findall(r"\d+\.\d[\d.]*", _DRIVER.read_text())[0]
    with contextlib.suppress(Exception):  # torch may have no NCCL
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def build_info() -> dict[str, Any] | None:
    """Return what the native library was built with and for; None if it has not been built."""
    try:
        module = _build.info()
    except ImportError:
        return None
    values = {name.lower(): value for name, value in vars(module).items() if name.isupper()}
    return {
        name: hide_paths(value) if isinstance(value, str) else value
        for name, value in values.items()
        if isinstance(value, str | int | float | bool | None)
    }

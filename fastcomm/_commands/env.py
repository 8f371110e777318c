"""``fastcomm env``: this machine and process, as fastcomm sees them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from fastcomm import _build, _native
from fastcomm._commands import crowding
from fastcomm._commands.common import guarded, is_ready
from fastcomm._version import __version__

# What a table's column of values says without these words.
_SHORT = re.compile("^(one of |a whole number from |a number of seconds from )")


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    return guarded("fastcomm env", lambda: _env(argv))


def _env(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="fastcomm env",
        description="Print versions, the build, processor, CUDA devices and settings in force; "
        "as one of several local ranks, also whether they crowd the machine.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--settings", action="store_true", help="print what each setting does, and may be"
    )
    parser.add_argument(
        "--style", choices=("plain", "github"), default="plain", help="of that list (plain)"
    )
    options = parser.parse_args(argv)
    if options.settings:
        print(settings_text(options.style))
        return 0
    if not is_ready("fastcomm env"):
        return 2
    found = collect()
    print(json.dumps(found, indent=2, default=str) if options.json else format_text(found))
    return 0


def settings_text(style: str) -> str:
    """Return all settings as text: name, default, allowed values, effect.

    Args:
        style: ``"github"`` for a table in Markdown, ``"plain"`` for paragraphs.
    """
    rows = _native.load().settings()
    if style == "github":
        head = ("variable", "default", "values", "effect")
        lines = [" | ".join(head), "|".join(["---"] * len(head))]
        lines += [
            f"`{name}` | `{default}` | {_SHORT.sub('', allowed)} | {effect}"
            for name, default, allowed, effect in rows
        ]
        return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)
    return "\n".join(
        f"{name} ({default}; {allowed})\n"
        + textwrap.fill(effect, 88, initial_indent="    ", subsequent_indent="    ")
        for name, default, allowed, effect in rows
    )


def collect() -> dict[str, Any]:
    """Return versions, build, processor, CUDA devices, warnings and settings.

    Where several CUDA devices are visible, their access to each other's memory is tried, once per
    process. Where the native library does not load, ``native`` says why.

    Raises:
        RuntimeError: a setting has a value that is not allowed.
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
    build = _build.info()
    found["torch"] = torch.__version__
    found["native"] = "available"
    found["build"] = {
        name.lower(): getattr(build, name) for name in sorted(dir(build)) if name.isupper()
    }
    found["usable cores"] = native.usable_cores()
    found["instruction set"] = native.reduce_isa()
    found["CUDA devices"] = _cuda_devices(native)
    if crowded := crowding.warnings_here():
        found["warnings"] = crowded
    found["settings"] = native.environment()
    found["set in the environment"] = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("FASTCOMM_") or name == "DDP_DISABLE_COMM_MEM"
    }
    return found


def _cuda_devices(native: Any) -> dict[str, str] | str:
    """Return each device's name and its access to the others' memory, or why none is listed."""
    import torch

    from fastcomm._devices.slots import served

    if torch.get_device_module(served())._is_in_bad_fork():
        return "not asked: CUDA does not work in a child of fork()"
    try:
        seen = native.cuda_devices()
    except Exception as error:  # a failing device is part of the report
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
        elif name == "warnings":
            lines.extend(f"warning: {line}" for line in value)
        else:
            lines.append(f"{name}: {value}")
    return "\n".join(lines)

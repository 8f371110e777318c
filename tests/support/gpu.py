"""Whether a CUDA device can be used here, asked without torch; and what the tools on one say."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gpu_device  # noqa: E402
import gpu_programs  # noqa: E402

DEVICE = gpu_device.find()
WHY_NONE = DEVICE if isinstance(DEVICE, str) else None

# What compute-sanitizer says where it cannot look at the device: sandboxes, old drivers.
_REFUSALS = re.compile(
    r"^.*(?:Device not supported|Unable to (?:find|load|connect|inject|attach)|LibraryNotLoaded"
    r"|insufficient (?:permission|driver)|Target application terminated before first instrumented"
    r"|Internal Sanitizer Error|Timed out (?:while )?waiting|Operation not permitted"
    r"|not supported (?:on|by) this).*$",
    re.IGNORECASE | re.MULTILINE,
)
_FINDING = re.compile(
    r"Invalid __\w+__ (?:read|write|atomic)|Uninitialized __\w+__|Misaligned|Leaked \d+ bytes"
    r"|(?:Host API|Program hit) (?:uninitialized|memory)",
    re.IGNORECASE,
)


@functools.cache
def programs() -> dict[str, Path]:
    """Return the C++ programs for this device, compiled if what was carried does not fit."""
    assert isinstance(DEVICE, gpu_device.Device), DEVICE
    return gpu_programs.ensure(DEVICE.capability)


def sanitizer_refusal(output: str) -> str | None:
    """Return the line in which compute-sanitizer says that it cannot work here.

    None if there is no such line, or if the tool has found something: then it can work.
    """
    refusal = _REFUSALS.search(output)
    return refusal[0].strip("= \t") if refusal and not _FINDING.search(output) else None

"""Values that ``fastcomm tune`` has measured on this machine, for process groups to use.

There are values for each number of ranks, in ``tuning.json`` of `fastcomm._machine.identity`. The
native library is told them when it is loaded, unless ``FASTCOMM_TUNING`` is ``off``. A group takes
those of its rank 0. A user's setting takes precedence over them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from fastcomm._machine import identity as _machine

logger = logging.getLogger("fastcomm")

SWITCH = "FASTCOMM_TUNING"
# The setting for each value, by its name in the native library (csrc/core/tuning.h).
SETTINGS = {
    "payload_bytes": "FASTCOMM_ONE_SHOT_BYTES",
    "block_bytes": "FASTCOMM_BLOCK_BYTES",
    "slot_bytes": "FASTCOMM_ONE_SHOT_BYTES",
    "device_blocks": "FASTCOMM_DEVICE_BLOCKS",
    "pulls": "FASTCOMM_DEVICE_RESULTS",
}
_NAME = "tuning.json"

Values = Mapping[str, int]


def file() -> Path:
    """Return the path of the file with the values."""
    return _machine.file(_NAME)


def read() -> dict[int, dict[str, int]]:
    """Return the values of this machine, by number of ranks, that differ from the defaults."""
    found: dict[int, dict[str, int]] = {}
    for ranks, values in _machine.read(_NAME).items():
        if not (ranks.isdecimal() and isinstance(values, dict)):
            continue
        found[int(ranks)] = {
            name: int(value)
            for name, value in values.items()
            if name in SETTINGS and isinstance(value, int)
        }
    return found


def write(values: Mapping[int, Values]) -> None:
    """Replace the values of this machine, by number of ranks; for other numbers defaults hold.

    Raises:
        OSError: the file cannot be written.
    """
    _machine.write(_NAME, {str(ranks): dict(of) for ranks, of in values.items() if of})


def tell(native: ModuleType) -> None:
    """Tell the native library the values of this machine."""
    if os.environ.get(SWITCH) == "off":
        return
    for ranks, values in read().items():
        try:
            native.set_tuning(ranks, **values)
        except (TypeError, RuntimeError) as error:
            logger.warning("%s, values for %d ranks: %s", file(), ranks, error)

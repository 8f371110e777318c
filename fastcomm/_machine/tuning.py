"""Values that ``fastcomm tune`` has measured on this machine, for process groups to use.

There are values for each number of ranks, and for each number of hosts and of ranks on each, in
``tuning.json`` of `fastcomm._machine.identity`, as ``"4"`` and ``"2x4"``. The
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
# Likewise, of groups over several hosts.
HOSTS_SETTINGS = {
    "short_bytes": "FASTCOMM_HOSTS_SHORT_BYTES",
    "chunk_bytes": "FASTCOMM_HOSTS_CHUNK_BYTES",
}
_NAME = "tuning.json"

Values = Mapping[str, int]
Key = int | tuple[int, int]
"""A number of ranks that share memory; or a number of hosts, and of ranks on each."""


def file() -> Path:
    """Return the path of the file with the values."""
    return _machine.file(_NAME)


def read() -> dict[Key, dict[str, int]]:
    """Return the values of this machine that differ from the defaults."""
    found: dict[Key, dict[str, int]] = {}
    for written, values in _machine.read(_NAME).items():
        key = _key(written)
        if key is None or not isinstance(values, dict):
            continue
        known = SETTINGS if isinstance(key, int) else HOSTS_SETTINGS
        found[key] = {
            name: int(value)
            for name, value in values.items()
            if name in known and isinstance(value, int)
        }
    return found


def write(values: Mapping[Key, Values]) -> None:
    """Replace the values of this machine; for what is not among them defaults hold.

    Raises:
        OSError: the file cannot be written.
    """
    written = {_written(key): dict(of) for key, of in values.items() if of}
    _machine.write(_NAME, written)


def _written(key: Key) -> str:
    return str(key) if isinstance(key, int) else f"{key[0]}x{key[1]}"


def _key(written: str) -> Key | None:
    """Return what `_written` was given; None for another text."""
    numbers = written.split("x")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        return None
    return int(numbers[0]) if len(numbers) == 1 else (int(numbers[0]), int(numbers[1]))


def tell(native: ModuleType) -> None:
    """Tell the native library the values of this machine."""
    if os.environ.get(SWITCH) == "off":
        return
    for key, values in read().items():
        try:
            if isinstance(key, int):
                native.set_tuning(key, **values)
            else:
                native.set_host_tuning(*key, **values)
        except (TypeError, RuntimeError) as error:
            of = f"{key} ranks" if isinstance(key, int) else f"{key[0]} hosts of {key[1]} ranks"
            logger.warning("%s, values for %s: %s", file(), of, error)

"""Faults that ``fastcomm check`` has found on this machine, for process groups to avoid.

The settings that avoid them are in ``verdicts.json`` of `fastcomm._machine.identity`. They are put
into the environment before the native library is loaded, which reads it once. A variable that is
already set keeps its value. With ``FASTCOMM_VERDICTS=off`` none is set. Paths that work are not
recorded: every group tries them for itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from fastcomm._machine import identity as _machine

logger = logging.getLogger("fastcomm")

SWITCH = "FASTCOMM_VERDICTS"
# Settings that a check may choose.
SETTINGS = ("FASTCOMM_IPC", "FASTCOMM_ROUTE", "FASTCOMM_TRANSPORT", "FASTCOMM_PEER_ACCESS")
_NAME = "verdicts.json"


def file() -> Path:
    """Return the path of the file with the verdicts."""
    return _machine.file(_NAME)


def read() -> dict[str, str]:
    """Return the settings for this machine."""
    return {name: str(value) for name, value in _machine.read(_NAME).items() if name in SETTINGS}


def write(settings: dict[str, str], decided: Iterable[str] = SETTINGS) -> None:
    """Record settings for this machine.

    Args:
        settings: values of the settings that avoid a fault, by name.
        decided: names whose earlier value is removed unless ``settings`` has a new one. Other names
            keep theirs.

    Raises:
        OSError: the file cannot be written.
    """
    kept = {name: value for name, value in read().items() if name not in set(decided)}
    _machine.write(_NAME, {**kept, **settings})


def obey() -> None:
    """Set the environment variables of this machine's verdicts, where the user has not."""
    if os.environ.get(SWITCH) == "off":
        return
    for name, value in read().items():
        if name not in os.environ:
            os.environ[name] = value
            logger.warning(
                "%s=%s, since 'fastcomm check' has found something wrong without (%s)",
                name,
                value,
                file(),
            )

"""Settings, the FASTCOMM_ variables of the environment, as the library's table has them.

The table (csrc/core/env.cpp) has each one's name, default, allowed values and effect; the library
parses them once per process, and names the one that is wrong.
"""

from __future__ import annotations

import difflib
import functools
import os
import warnings

from fastcomm import _native

BUILD = ("FASTCOMM_CUDA", "FASTCOMM_DEBUG", "FASTCOMM_UNITS")  # setup.py reads them


def names() -> list[str]:
    """Return the names of all settings."""
    return [name for name, *_ in _native.load().settings()]


def changed() -> list[tuple[str, object, str]]:
    """Return the settings that are not the default: name, value, default."""
    native = _native.load()
    values = native.environment()
    return [
        (name, values[name], default)
        for name, default, *_ in native.settings()
        if str(values[name]) not in (default, f"{default}.0")
    ]


def wrong() -> str:
    """Return what is wrong with a setting, in one line that names it; "" if nothing is.

    Only where a variable is set is the library loaded, and with it torch.
    """
    if not any(name.startswith("FASTCOMM_") and name not in BUILD for name in os.environ):
        return ""
    try:
        native = _native.load()
    except _native.NativeLibraryError:
        return ""  # nothing reads them; who needs the library says what is wrong with it
    try:
        native.environment()
        native.reduce_isa()  # a set of instructions that this processor lacks
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


@functools.cache
def warn_of_unknown() -> None:
    """Warn of each FASTCOMM_ variable that nothing reads, mostly a typo; once per process."""
    known = [*names(), *BUILD]
    for name in sorted(os.environ):
        if name.startswith("FASTCOMM_") and name not in known:
            like = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {like[0]}? " if like else ""
            warnings.warn(
                f"{name} is set, and fastcomm has no such setting: {meant}"
                "'fastcomm env --settings' lists them",
                RuntimeWarning,
                stacklevel=2,
            )

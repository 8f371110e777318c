"""Settings, the FASTCOMM_ variables of the environment: whether each may be what it is.

The native library reads most of them, once, and says what is wrong with one (csrc/core/env.cpp).
"""

from __future__ import annotations

import os

from fastcomm import _native

# Those that the native library does not read, and what they may be. The first two are setup.py's.
OF_PYTHON = {
    "FASTCOMM_CUDA": ("0", "1"),
    "FASTCOMM_DEBUG": ("0", "1"),
    "FASTCOMM_TUNING": ("auto", "off"),
    "FASTCOMM_VERDICTS": ("auto", "off"),
}


def wrong_of_python() -> list[str]:
    """Return what is wrong with those that the native library does not read: a text for each."""
    return [
        f"{name}={value}: may be one of {', '.join(allowed)}"
        for name, allowed in OF_PYTHON.items()
        if (value := os.environ.get(name, "")) not in ("", *allowed)
    ]


def wrong() -> str:
    """Return what is wrong with a setting, in one line that names it; "" if nothing is.

    Only where a variable is set that the native library reads is that loaded, and with it torch.
    """
    if found := wrong_of_python():
        return found[0]
    if not any(name.startswith("FASTCOMM_") and name not in OF_PYTHON for name in os.environ):
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

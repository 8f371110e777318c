"""Whether a CUDA device can be used here, asked without torch."""

from __future__ import annotations

import ctypes


def _why_none() -> str | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver"
    count = ctypes.c_int(0)
    if (status := driver.cuInit(0)) != 0:
        return f"the CUDA driver does not start (error {status})"
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "no CUDA device"
    return None


WHY_NONE = _why_none()

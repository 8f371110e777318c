"""Which CUDA device is here, asked of the driver, without torch and without a context.

    python tools/gpu_device.py        # JSON

A separate process asks where that must not hang or crash the caller (`ask`).
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import asdict, dataclass

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True)
class Device:
    """The first device.

    Attributes:
        name: as the driver gives it.
        capability: such as "9.0".
        count: how many devices there are.
        driver: the CUDA version that the driver supports, such as "13.0".
    """

    name: str
    capability: str
    count: int
    driver: str


def find() -> Device | str:
    """Return the first device, or why there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver"
    count, handle, version = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    if (status := driver.cuInit(0)) != 0:
        return f"the CUDA driver does not start (error {status})"
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "no CUDA device"
    name = ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    failed = [
        driver.cuDeviceGet(ctypes.byref(handle), 0),
        driver.cuDeviceGetName(name, len(name), handle),
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle),
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle),
        driver.cuDriverGetVersion(ctypes.byref(version)),
    ]
    if any(failed):
        return f"the CUDA driver does not describe its device (errors {failed})"
    supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Device(name.value.decode(), f"{major.value}.{minor.value}", count.value, supported)


def ask(seconds: float = 60) -> Device | str:
    """Run `find` in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, __file__], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"the CUDA driver does not answer within {seconds:.0f} s"
    if done.returncode != 0:
        return f"asking the CUDA driver ended with status {done.returncode}: {done.stderr[-300:]}"
    answer = json.loads(done.stdout)
    return answer if isinstance(answer, str) else Device(**answer)


if __name__ == "__main__":
    answer = find()
    print(json.dumps(answer if isinstance(answer, str) else asdict(answer)))

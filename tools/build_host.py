"""What a build needs of the machine, and what to type where it is missing: compiler and memory."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
from pathlib import Path

import native_build

OLDEST_GCC = 10  # the first with what torch's newest headers use of C++20
COMPILER_BYTES = 1.6 * 2**30  # what one compiler takes of memory at most, with GCC 12
WHEEL = "or install a wheel of fastcomm, which needs no compiler"


def check_compiler() -> None:
    """Look for a C++ compiler.

    Raises:
        SystemExit: there is none, or it is too old for torch's headers.
    """
    command = native_build.compiler()
    try:
        look = [*command, "-dM", "-E", "-x", "c++", os.devnull]
        said = subprocess.run(look, text=True, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit(
            f"fastcomm: there is no C++ compiler: {' '.join(command)} does not start. Install "
            f"g++ (apt-get install g++), name another one in CXX, {WHEEL}"
        ) from None
    macros = dict(re.findall(r"#define (__\w+__) (\d+)$", said, re.MULTILINE))
    major = int(macros.get("__GNUC__", OLDEST_GCC))
    if "__clang__" not in macros and major < OLDEST_GCC:
        raise SystemExit(
            f"fastcomm: {' '.join(command)} is GCC {major}, and torch's headers need GCC "
            f"{OLDEST_GCC} or later. Install one and name it in CXX, {WHEEL}"
        )


def memory() -> float:
    """Return the bytes of memory that compilers may take, together."""
    free = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    found = [int(free[1]) * 1024.0] if free else []
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is "max"
            found.append(float(Path(limit).read_text()))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    found += [float(space)] if space != resource.RLIM_INFINITY else []
    return min(found, default=float("inf"))


def limit_jobs() -> None:
    """Set ``MAX_JOBS`` to what memory and processors allow, unless it is set."""
    fitting = int(min(memory() / COMPILER_BYTES, len(os.sched_getaffinity(0))))
    os.environ.setdefault("MAX_JOBS", str(max(1, fitting)))


def failure(error: object) -> str:
    """Return the line that ends a build whose compilers have failed."""
    jobs, free = int(os.environ.get("MAX_JOBS") or 1), memory()
    if free >= jobs * COMPILER_BYTES:
        return f"fastcomm: the compilation failed, see above ({error})"
    return (
        f"fastcomm: the compilation failed, most likely for want of memory: {jobs} compilers at "
        f"once take up to {jobs * COMPILER_BYTES / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are "
        f"free. {'Set MAX_JOBS=1' if jobs > 1 else 'Add memory or swap'}, {WHEEL}"
    )

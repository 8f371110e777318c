"""Compile the library of the simulated accelerator, once for each torch and Python."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "csrc"
MODULE = "_sim"
# Nothing in it is worth a compiler's time.
FLAGS = ["-std=c++20", "-O0", "-g0", "-fPIC", "-shared", "-Wall", "-Wno-attributes"]


def missing() -> str:
    """Return why the library cannot be built here, "" if it can."""
    if shutil.which(compiler()[0]) is None:
        return f"no C++ compiler: {compiler()[0]} is not there"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no headers of Python to compile with"
    return ""


def compiler() -> list[str]:
    """Return the C++ compiler's command: ``$CXX``, else g++."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def library() -> Path:
    """Return the library's path; compiles it unless that was done, half a minute.

    Raises:
        RuntimeError: it does not compile; the compiler's words are in the text.
    """
    import torch

    folder = ROOT / "build" / "sim" / f"torch{torch.__version__}-{sys.implementation.cache_tag}"
    folder.mkdir(parents=True, exist_ok=True)
    path, stamp = folder / f"{MODULE}.so", folder / "stamp"
    command = [*compiler(), *FLAGS, *torch_flags(Path(torch.__file__).parent)]
    state = digest(command)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
        if path.exists() and stamp.exists() and stamp.read_text() == state:
            return path
        made = path.with_suffix(".new")  # processes may have the old one mapped
        command += ["-o", str(made)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}\n{result.stderr[-4000:]}")
        made.replace(path)
        stamp.write_text(state)
    return path


def torch_flags(torch: Path) -> list[str]:
    """Return what compiles and links ``module.cpp`` with an installed torch."""
    include, libraries = torch / "include", torch / "lib"
    folders = [
        include,
        include / "torch" / "csrc" / "api" / "include",
        sysconfig.get_path("include"),
    ]
    return [
        *(f"-isystem{folder}" for folder in folders),
        f"-DTORCH_EXTENSION_NAME={MODULE}",
        str(SOURCES / "module.cpp"),
        f"-L{libraries}",
        *("-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"),
    ]


def digest(command: list[str]) -> str:
    """Return what the library's content depends on, as one word."""
    parts = [shlex.join(command), *(path.read_text() for path in sorted(SOURCES.iterdir()))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()

"""Which build serves the running torch: that of an installation, or one of those in a wheel.

A wheel that needs no compiler (tools/wheels.py) has a library and a record of its build for each
minor release of torch, in folders of which one is chosen here. Everywhere else there is one
library, beside the package's modules.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

_RECORD = "fastcomm._build_info"
_PACKAGE = Path(__file__).resolve().parent
_BUILDS = _PACKAGE / "_builds"
REBUILD = (
    "Build it for this environment, in fastcomm's source folder:\n"
    "    pip install --no-build-isolation --no-deps --force-reinstall ."
)


class NativeLibraryError(ImportError):
    """fastcomm's native library is missing, or was built for something else."""


def running_torch() -> ModuleType:
    """Return torch.

    Raises:
        NativeLibraryError: it does not import.
    """
    try:
        import torch
    except ImportError as error:
        raise NativeLibraryError(
            f"fastcomm needs torch, which does not import ({error}). Type:\n"
            '    pip install "torch>=2.11"'
        ) from error
    found: ModuleType = torch
    return found


def info() -> ModuleType:
    """Return ``fastcomm._build_info``, of the build that serves the running torch.

    Raises:
        NativeLibraryError: this is a wheel, and no build in it does.
        ModuleNotFoundError: nothing has been built.
    """
    if _BUILDS.exists() and not (_PACKAGE / "_build_info.py").exists():
        _choose(str(running_torch().__version__))
    return importlib.import_module(_RECORD)


def _choose(torch: str) -> None:
    """Let the package's modules be found in the folder for a torch, too."""
    folder = _BUILDS / "torch{}_{}".format(*torch.split(".")[:2])
    if not folder.exists():
        names = (path.name.removeprefix("torch").split("_") for path in _BUILDS.glob("torch*"))
        served = sorted((int(major), int(minor)) for major, minor in names)
        listed = ", ".join(f"{major}.{minor}" for major, minor in served)
        raise NativeLibraryError(
            f"this wheel of fastcomm serves torch {listed}, but this process has torch {torch}. "
            f"Install one of these, or build fastcomm for it.\n{REBUILD}"
        )
    searched = sys.modules["fastcomm"].__path__
    if str(folder) not in searched:
        searched.append(str(folder))

"""Load ``fastcomm._C``, after comparing what it was built for with what is running.

A C++ extension of torch works with exactly the torch it was compiled against; with another one
the dynamic loader reports an undefined symbol, or worse, nothing. So the record that the build
left (``fastcomm/_build_info.py``) is compared before the library is opened, and the error says
what differs and what to type. Before the library is opened, environment variables are set that
avoid what ``fastcomm check`` has found wrong on this machine; then it is told the classes of
its errors, and what ``tune`` has measured.

    from fastcomm import _native
    native = _native.load()
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

from fastcomm import _build
from fastcomm._build import REBUILD as _REBUILD
from fastcomm._build import NativeLibraryError as NativeLibraryError
from fastcomm._machine import tuning as _tuning
from fastcomm._machine import verdicts as _verdicts

_LIBRARY = "fastcomm._C"
_opened: ModuleType | None = None


def load() -> ModuleType:
    """Return ``fastcomm._C``; the first call imports torch and opens it.

    Raises:
        NativeLibraryError: the library is missing, was built for another torch, CUDA or Python,
            or cannot be opened. The text says what to type.

    Warns:
        RuntimeWarning: once, of a torch that is newer than any that fastcomm was tested with.
    """
    global _opened
    if _opened is not None:  # not sys.modules: whoever imports the library itself tells it nothing
        return _opened
    running = _running_versions()
    built = _built_versions()
    # A library without CUDA code (None) does not care about CUDA's version.
    differing = [part for part, version in built.items() if not _serves(version, running[part])]
    if differing:
        raise NativeLibraryError(
            f"fastcomm was built for {_in_words(built, differing)}, "
            f"but this process has {_in_words(running, differing)}.\n{_REBUILD}"
        )
    if importlib.util.find_spec(_LIBRARY) is None:
        raise NativeLibraryError(f"fastcomm's native library is missing.\n{_REBUILD}")
    _verdicts.obey()  # before the library reads settings
    try:
        library = importlib.import_module(_LIBRARY)
    except ImportError as error:
        raise NativeLibraryError(
            f"fastcomm's native library does not load: {error}.\n{_REBUILD}"
        ) from error
    from fastcomm import errors  # which imports torch

    errors.register(library)
    _tuning.tell(library)
    _opened = library
    _warn_of_a_newer_torch()
    return library


def is_available() -> bool:
    """Tell whether process groups can be created here: torch.distributed and the library work."""
    return unavailable_reason() is None


def unavailable_reason() -> str | None:
    """Return why :func:`is_available` is False, None where it is True."""
    try:
        load()
    except NativeLibraryError as error:
        return str(error)
    import torch.distributed

    if not torch.distributed.is_available():
        return "this torch was built without torch.distributed"
    return None


def _running_versions() -> dict[str, str | None]:
    torch = _build.running_torch()
    return {
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda,
        "Python": sys.implementation.cache_tag,
    }


def _warn_of_a_newer_torch() -> None:
    # Once per process, since the library is opened once. A record may be older than this line.
    info = vars(_build.info())
    if info.get("IS_NEWER_TORCH"):
        warnings.warn(
            f"fastcomm has been tested with torch up to {info['NEWEST_KNOWN_TORCH']}; this is "
            f"{info['TORCH_VERSION']}. If something is wrong, try that one",
            RuntimeWarning,
            stacklevel=3,
        )


def _serves(built: str | None, running: str | None) -> bool:
    """Tell whether what was built for a version serves another; major and minor serve them all."""
    is_minor = built is not None and built.count(".") == 1 and running is not None
    return built is None or built == running or (is_minor and f"{running}".startswith(f"{built}."))


def _built_versions() -> dict[str, str | None]:
    try:
        info = _build.info()
        return {"torch": info.TORCH_VERSION, "CUDA": info.CUDA_VERSION, "Python": info.PYTHON_TAG}
    except ModuleNotFoundError:
        # Without the cause, which says no more in ten lines.
        raise NativeLibraryError(_why_not_built()) from None
    except NativeLibraryError:
        raise
    except Exception as error:
        raise NativeLibraryError(
            f"fastcomm's record of its build cannot be read ({error!r}).\n{_REBUILD}"
        ) from error


def _why_not_built() -> str:
    here = Path(__file__).resolve().parent
    for installed in importlib.metadata.distributions(name="fastcomm"):
        elsewhere = Path(str(installed.locate_file("fastcomm"))).resolve()
        if elsewhere != here and (elsewhere / "_build_info.py").exists():
            return (
                f"{here} are sources, which are not built; the fastcomm that is installed is "
                f"{elsewhere}.\nPython looks into a program's own folder first: start it, and keep "
                "its file, outside of fastcomm's source folder."
            )
    return f"fastcomm has not been built here.\n{_REBUILD}"


def _in_words(versions: dict[str, str | None], parts: list[str]) -> str:
    return ", ".join(f"{part} {versions[part] or '(none)'}" for part in parts)

"""What commands of ``fastcomm`` have in common: arguments, and how they end."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence

from fastcomm._machine import settings
from fastcomm._native import NativeLibraryError

TABLES = ("tabulate", "tqdm")  # what tables and progress need


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds above 0")
    return value


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("a whole number above 0")
    return value


def run(name: str, needed: Sequence[str], body: Callable[[], int]) -> int:
    """Run a command, and return its exit status.

    The status is 130 for Ctrl-C, and 2, with a line that says why, where `is_ready` says no, a
    file cannot be written, or the native library does not load.
    """
    return guarded(name, lambda: body() if is_ready(name, needed) else 2)


def guarded(name: str, body: Callable[[], int]) -> int:
    """Run what may begin before settings are looked at, as the help; otherwise as `run`."""
    try:
        return body()
    except KeyboardInterrupt:
        return 130
    except (OSError, NativeLibraryError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def is_ready(name: str, needed: Sequence[str] = ()) -> bool:
    """Tell whether a command may begin; if not, a line on standard error says why.

    Packages may be missing, and a FASTCOMM_ variable may have a value that it cannot have.
    """
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        print(f"this needs more packages: pip install {' '.join(missing)}", file=sys.stderr)
        return False
    if wrong := settings.wrong():
        print(f"{name}: {wrong}", file=sys.stderr)
        return False
    return True

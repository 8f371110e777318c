"""What commands of ``fastcomm`` have in common: arguments, and how they end."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence

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

    The status is 130 for Ctrl-C, and 2, with a line that says why, where packages are missing or a
    file cannot be written.
    """
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        print(f"this needs more packages: pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    try:
        return body()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2

"""Parts that the commands of ``fastcomm`` share: types of arguments, and exit statuses.

The types, for ``type=`` of argparse, raise ``argparse.ArgumentTypeError`` for any other text.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from fastcomm import _native, _settings

Number = TypeVar("Number", int, float)

TABLES = ("tabulate", "tqdm")  # packages that tables and progress bars need


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    return parsed(
        float, text, lambda value: 0 < value < float("inf"), "a number of seconds above 0"
    )


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    return parsed(int, text, lambda value: value >= 1, "a whole number above 0")


def count(text: str) -> int:
    """Parse a whole number that may be 0."""
    return parsed(int, text, lambda value: value >= 0, "a whole number, 0 or more")


def several_ranks(text: str) -> int:
    """Parse a number of ranks, from 2 to the most that a native group may have."""
    try:
        most = _native.load().MAX_RANKS
    except _native.NativeLibraryError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    what = f"a number of ranks from 2 to {most}"
    return parsed(int, text, lambda value: 2 <= value <= most, what)


def parsed(
    parse: Callable[[str], Number], text: str, fits: Callable[[Number], bool], what: str
) -> Number:
    """Parse a number that ``fits``, or raise an error that says ``what`` was expected.

    For a ValueError argparse would name the function instead.
    """
    with contextlib.suppress(ValueError):
        if fits(value := parse(text)):
            return value
    raise argparse.ArgumentTypeError(f"{what}, not {text!r}")


def run(name: str, needed: Sequence[str], body: Callable[[], int]) -> int:
    """Run a command, and return its exit status.

    The status is 130 for Ctrl-C, 1 if nobody reads the output to its end, and 2, with a line that
    says why, where `is_ready` is False, a system call fails (a file cannot be written), or the
    native library does not load.
    """
    return guarded(name, lambda: body() if is_ready(name, needed) else 2)


def guarded(name: str, body: Callable[[], int]) -> int:
    """Run a command that calls `is_ready` itself, if at all; the exit status is that of `run`."""
    try:
        status = body()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads has seen enough, as `head`
        with open(os.devnull, "w") as nowhere:  # for what the interpreter flushes when it ends
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 1
    except (OSError, _native.NativeLibraryError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def is_ready(name: str, needed: Sequence[str] = ()) -> bool:
    """Tell whether a command may begin; if not, a line on standard error says why.

    It may not if a package is missing, or if a FASTCOMM_ variable has a value that is not allowed.
    """
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        print(f"this needs more packages: pip install {' '.join(missing)}", file=sys.stderr)
        return False
    if wrong := _settings.wrong():
        print(f"{name}: {wrong}", file=sys.stderr)
        return False
    return True


def with_script(
    parser: argparse.ArgumentParser, argv: Sequence[str], with_value: Collection[str]
) -> tuple[argparse.Namespace, list[str], bool]:
    """Parse a command line that ends with a script and its arguments.

    What follows the script's name, or ``-m`` and a module's, is the script's.

    Args:
        parser: of the options before it. It ends the process where they are wrong.
        argv: all words.
        with_value: those options that take a value.

    Returns:
        The options, the script or module with its arguments, and whether it is a module.
    """
    words, own = list(argv), []
    while words and words[0].startswith("-") and words[0] != "-m":
        own.append(words.pop(0))
        if own[-1] in with_value and words:
            own.append(words.pop(0))
    options = parser.parse_args(own)  # ends for --help, or an option that is not there
    as_module = words[:1] == ["-m"]
    rest = words[1:] if as_module else words
    if not rest:
        parser.error("-m needs a module" if as_module else "there is no script to run")
    if rest[0].startswith("-"):
        parser.error(f"{rest[0]} is no module")
    return options, rest, as_module


def is_file(name: str, words: Sequence[str], as_module: bool) -> bool:
    """Tell whether a script is there, or is a module; if not, a line on standard error says so."""
    if as_module or os.path.isfile(words[0]):
        return True
    print(f"{name}: there is no file {words[0]}", file=sys.stderr)
    return False

"""Words of the command line: sizes, element types and names, with aliases and suggestions.

The functions that parse raise ``argparse.ArgumentTypeError`` for a word that they do not know. In
``type=`` of argparse it becomes a line on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from fastcomm._measure import units

T = TypeVar("T")

# Names of reductions in other libraries.
REDUCTION_ALIASES = {"average": "avg", "mean": "avg", "prod": "product"}
# Short names of element types without their bits, and torch's.
_PREFIXES = {"fp": "float", "f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ``: did you mean NAME?`` for the known name closest to a word, or ""."""
    names = {_plain(name): name for name in known}
    like = difflib.get_close_matches(_plain(word), names, 1, cutoff=0.6)
    return f": did you mean {names[like[0]]}?" if like else ""


def name_of(
    word: str, known: Collection[str], what: str, aliases: Mapping[str, str] | None = None
) -> str:
    """Return the known name that a word means: ``allreduce`` and ``All-Reduce`` are all_reduce.

    Args:
        word: the user's word.
        known: the names.
        what: a noun for them, such as ``"operation"``, for the error.
        aliases: for other names, the known name of each.

    Raises:
        argparse.ArgumentTypeError: the word means none of the names, or several.
    """
    if word in known:
        return word
    plain = _plain(word)
    meant = {name for name in known if plain and _plain(name) == plain}
    meant |= {(aliases or {}).get(word.lower(), "")} & set(known)
    if len(meant) == 1:
        return meant.pop()
    like = did_you_mean(word, [*known, *(aliases or {})])
    raise argparse.ArgumentTypeError(f"no {what}: {word}{like}; known: {', '.join(known)}")


def dtype(text: str) -> str:
    """Return torch's own name of an element type: ``bf16``, ``half`` and ``torch.float16`` too.

    Raises:
        argparse.ArgumentTypeError: torch has no such type.
    """
    names = _dtype_names()
    word = text.strip().lower().removeprefix("torch.")
    if word in names:
        return names[word]
    meant = did_you_mean(word, names)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no dtype of torch{meant or '; write for example float32, bf16 or int64'}"
    )


def dtypes(text: str) -> tuple[str, ...]:
    """Return torch's names of the types in a list with commas, each once; see `dtype`."""
    return tuple(dict.fromkeys(dtype(word) for word in text.split(",")))


def size(text: str) -> int:
    """Return a number of bytes; see `fastcomm._measure.units.parse_size`."""
    return _parsed(units.parse_size, text)


def sizes(text: str) -> list[int]:
    """Return numbers of bytes; see `fastcomm._measure.units.parse_sizes`."""
    return _parsed(units.parse_sizes, text)


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plain(word: str) -> str:
    return re.sub(r"[\W_]", "", word.lower())


@functools.cache
def _dtype_names() -> dict[str, str]:
    """Return torch's own name of a type by each of its names."""
    import torch

    own = {
        name: str(value).removeprefix("torch.")
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype)
    }
    short = {
        f"{letters}{bits}": f"{name}{bits}"
        for letters, name in _PREFIXES.items()
        for bits in (8, 16, 32, 64, 128)
        if f"{name}{bits}" in own
    }
    return {**short, **own}

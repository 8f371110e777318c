"""Words of the command line: sizes, types and names, understood or answered with the right one.

Functions for ``type=`` of argparse: each raises ``argparse.ArgumentTypeError`` for a word that it
does not know, which is one line on standard error and exit status 2.
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

# Other libraries' names of reductions.
REDUCTION_ALIASES = {"average": "avg", "mean": "avg", "prod": "product"}
_BITS = {"fp": "float", "f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ``: did you mean NAME?`` for the name that is most like a word; or nothing."""
    names = {_plain(name): name for name in known}
    like = difflib.get_close_matches(_plain(word), names, 1, cutoff=0.6)
    return f": did you mean {names[like[0]]}?" if like else ""


def name_of(
    word: str, known: Collection[str], what: str, aliases: Mapping[str, str] | None = None
) -> str:
    """Return the known name that a word means: ``allreduce`` and ``All-Reduce`` are all_reduce.

    Args:
        word: what was typed.
        known: the names.
        what: they are names of, for the error.
        aliases: other names.

    Raises:
        argparse.ArgumentTypeError: no name, or more than one, is meant.
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
    """Return the types of a list with commas between, at least one; see `dtype`."""
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
    """Return each name by which a type is known, and torch's own name of it."""
    import torch

    own = {
        name: str(value).removeprefix("torch.")
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype)
    }
    short = {
        f"{letters}{bits}": f"{name}{bits}"
        for letters, name in _BITS.items()
        for bits in (8, 16, 32, 64, 128)
        if f"{name}{bits}" in own
    }
    return {**short, **own}

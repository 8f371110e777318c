"""Sizes in bytes: parsing, printing and the list of sizes of a sweep."""

from __future__ import annotations

import re

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes meant by ``text``: a whole number, then optionally K, M or G.

    The units are powers of 1024, also as ``KB`` or ``KiB``. A ``B`` may follow a plain number.

    Raises:
        ValueError: ``text`` is not such a size.
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:I?B)?", text.strip().upper())
    if match is None:
        raise ValueError(f"not a size: {text!r}; write for example 8, 64K or 25M")
    return int(match[1]) * _SUFFIXES[match[2]]


def format_size(nbytes: int) -> str:
    """``nbytes`` in the largest binary unit that divides it: ``8 B``, ``32 KiB``, ``64 MiB``."""
    for unit, suffix in (("GiB", "G"), ("MiB", "M"), ("KiB", "K")):
        if nbytes and nbytes % _SUFFIXES[suffix] == 0:
            return f"{nbytes // _SUFFIXES[suffix]} {unit}"
    return f"{nbytes} B"


def rounded_size(nbytes: int) -> str:
    """``nbytes`` with one digit in the largest binary unit that it reaches: ``11.1 MiB``."""
    for unit, suffix in (("GiB", "G"), ("MiB", "M"), ("KiB", "K")):
        if nbytes >= _SUFFIXES[suffix]:
            return f"{nbytes / _SUFFIXES[suffix]:.1f} {unit}"
    return f"{nbytes} B"


def size_range(smallest: int, largest: int, factor: int = 1, step: int = 0) -> list[int]:
    """``smallest``, the next as ``size * factor + step``, ... and always ``largest``, in bytes.

    Raises:
        ValueError: an argument out of range.
    """
    if smallest < 1 or largest < smallest or (factor < 2 and step < 1):
        raise ValueError(
            f"a range of sizes needs 1 <= min <= max, and a factor of 2 or a step: got {smallest}, "
            f"{largest}, {factor}, +{step}"
        )
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size = size * factor + step
    return [*sizes, largest]


def parse_sizes(text: str) -> list[int]:
    """Sizes and ranges with commas between: ``8``, ``64K,25M``, ``8:64M:8``, ``1M:8M:+1M``.

    Raises:
        ValueError: ``text`` is not such a list.
    """
    found: set[int] = set()
    for item in text.split(","):
        words = item.split(":")
        if len(words) not in (1, 3):
            raise ValueError(f"not a size or a range: {item!r}; write 64K, 8:64M:8 or 1M:8M:+1M")
        first = parse_size(words[0])
        if len(words) == 1:
            found.update(size_range(first, first, 2))
        elif words[2].startswith("+"):
            found.update(size_range(first, parse_size(words[1]), step=parse_size(words[2][1:])))
        else:
            if not words[2].isdecimal():
                raise ValueError(f"not a factor: {words[2]!r}; write for example 8:64M:8")
            found.update(size_range(first, parse_size(words[1]), int(words[2])))
    return sorted(found)

"""Sizes in bytes: parsing, printing and the list of sizes of a sweep."""

from __future__ import annotations

import re

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes meant by ``text``: a whole number, then optionally K, M or G (KiB and B are allowed).

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


def size_range(smallest: int, largest: int, factor: int) -> list[int]:
    """``smallest``, ``smallest * factor``, ... and always ``largest``, in bytes.

    Raises:
        ValueError: an argument out of range.
    """
    if smallest < 1 or largest < smallest or factor < 2:
        raise ValueError(
            f"sizes need 1 <= min <= max and factor >= 2, got {smallest}, {largest}, {factor}"
        )
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return [*sizes, largest]

"""Levels of a composed ``all_reduce``: what the wire takes at least, and which level bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

# Partials of at most so many bytes go by the first ranks, by default (csrc/coll/host_thresholds.h).
SHORT_BYTES = 64 << 10


def partials_of(ranks: Sequence[int], size: int) -> int:
    """Return how many partial sums a host with these ranks, of ``size``, sends.

    They are the largest subtrees of the group's tree that lie on it (csrc/coll/host_layout.h).
    """

    def count(first: int, end: int) -> int:
        on_host = sum(first <= rank < end for rank in ranks)
        if on_host in (0, end - first):
            return min(on_host, 1)
        middle = first + (1 << ((end - first - 1).bit_length() - 1))
        return count(first, middle) + count(middle, end)

    return count(0, size)


def wire_us(
    size: int, hosts: int, partials: int, links: Sequence[Row], short_bytes: int = SHORT_BYTES
) -> float:
    """Return the least time of an ``all_reduce`` between hosts, in microseconds.

    That is of messages one after the other, on the link with the longest latency, and of what a
    host sends, at the rate of the slowest link with both directions in use
    (csrc/c10d/engines/hosts/host_sum.h).

    Args:
        size: bytes of the operation, fp32.
        hosts: their number.
        partials: of each host.
        links: rows of all pairs.
        short_bytes: the group's own limit of what goes by the first ranks.
    """
    latency_us = max(link["latency_us"] for link in links)
    bits_a_us = min(link["both_gbits"] for link in links) * 1e3
    if partials == 1 and size <= short_bytes:
        return float(latency_us + (hosts - 1) * size * 8 / bits_a_us)
    turns = 1 if hosts == 2 and partials == 1 else 2
    sent = (hosts - 1) / hosts * size * (partials + 1)
    return float(turns * latency_us + sent * 8 / bits_a_us)


def levels_of(rows: Sequence[Row], wire: float) -> Row:
    """Return what the levels of a call take in microseconds, and which one takes longest.

    Args:
        rows: of the whole call and, if each host has several ranks, of the part inside.
        wire: `wire_us`.

    Returns:
        ``inside_us``, ``wire_us``, ``rest_us``, which is what neither takes, and 0 where these
        overlap, and ``bound_by``.
    """
    inside = next((row["median_us"] for row in rows if row.get("backend") == "inside"
                   and "median_us" in row), 0.0)  # fmt: skip
    rest = max(0.0, rows[0]["median_us"] - inside - wire)
    levels = {"inside": inside, "wire": wire, "rest": rest}
    found: Row = {f"{name}_us": round(value, 3) for name, value in levels.items()}
    return {**found, "bound_by": max(levels, key=lambda name: levels[name])}

"""Rows of a sweep as a table of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcomm.bench.units import format_size

Row = dict[str, Any]


def point_of(row: Row) -> tuple[str, int]:
    """(operation, bytes): what rows of different backends are compared by."""
    return row["op"], row["bytes"]


def backends_of(rows: Sequence[Row]) -> list[str]:
    """Backends in order of appearance."""
    return list(dict.fromkeys(row["backend"] for row in rows))


def ratios(rows: Sequence[Row], baseline: str) -> list[float | None]:
    """For each row the median of ``baseline`` at the same point over its own; above 1 is faster.

    None for the baseline's own rows and where the baseline was not measured.
    """
    reference = {point_of(row): row["median_us"] for row in rows if row["backend"] == baseline}
    result: list[float | None] = []
    for row in rows:
        other = reference.get(point_of(row))
        known = other is not None and row["backend"] != baseline and row["median_us"] > 0
        result.append(other / row["median_us"] if known else None)
    return result


def format_table(rows: Sequence[Row], style: str = "simple") -> str:
    """The table in a style of tabulate (``simple``, ``github``, ...).

    The last backend to appear is the baseline of the ratio.
    """
    from tabulate import tabulate

    baseline = backends_of(rows)[-1] if rows else "baseline"
    body = []
    previous = ""
    for row, ratio in zip(rows, ratios(rows, baseline), strict=True):
        name, previous = (row["op"] if row["op"] != previous else ""), row["op"]
        sized = row["bytes"] > 0
        body.append(
            [
                name,
                format_size(row["bytes"]) if sized else "",
                row["backend"],
                *(_microseconds(row[key]) for key in ("min_us", "median_us", "p99_us")),
                _significant(row["algbw_gbs"]) if sized else "",
                _significant(row["busbw_gbs"]) if sized else "",
                f"{ratio:.1f}" if ratio is not None else "",
            ]
        )
    headers = [
        "operation",
        "size",
        "backend",
        "min [µs]",
        "median [µs]",
        "p99 [µs]",
        "algbw [GB/s]",
        "busbw [GB/s]",
        f"{baseline} / this",
    ]
    align = ("left", "right", "left", *["right"] * 6)
    return str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))


def _microseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _significant(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"

"""Tables of candidates of ``fastcomm tune``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcomm._measure.units import format_size

Row = dict[str, Any]


def format_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of candidates with their times, as multiples of the best one's."""
    from tabulate import tabulate

    lines = []
    for row in rows:
        named = ", ".join(f"{name} {value}" for name, value in row["candidate"].items())
        mark = "chosen" if row["chosen"] else ""
        lines.append([row["ranks"], row["on"], row["step"], named or "default", row["ratio"], mark])
    header = ["ranks", "on", "choice", "candidate", "times the best", ""]
    return str(tabulate(lines, header, floatfmt=".3f"))


def format_hosts(rows: Sequence[Row]) -> str:
    """Return a table for each choice between hosts: candidates, and their times in microseconds."""
    from tabulate import tabulate

    tables = []
    for step in dict.fromkeys(row["step"] for row in rows):
        candidates = [row for row in rows if row["step"] == step]
        names = [
            ", ".join(format_size(value) for value in row["candidate"].values()) or "default"
            for row in candidates
        ]
        lines: list[list[Any]] = []
        for message in candidates[0]["us"]:
            operation, _, size = message.rpartition(" ")
            times = [f"{row['us'][message]:,.0f}" for row in candidates]
            lines.append([f"{operation} of {format_size(int(size))}", *times])
        lines.append(["times the best", *(f"{row['ratio']:.3f}" for row in candidates)])
        lines.append(["", *("chosen" if row["chosen"] else "" for row in candidates)])
        header = [f"{step}, {candidates[0]['on']} ranks, µs", *names]
        align = ["left", *["right"] * len(names)]
        tables.append(str(tabulate(lines, header, colalign=align, disable_numparse=True)))
    return "\n\n".join(tables)

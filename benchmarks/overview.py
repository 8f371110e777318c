"""Ratios of all operations in one table: ``python benchmarks/overview.py FILE...``.

Each file is a sweep of one number of ranks; files of the same number count as one.  A ratio is the
median of the last backend in the file over that of the first, at the least size measured that is
not below the column's: above 1 the first is faster.  Operations without a size are in a table of
their own, with the medians.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastcomm._commands import words
from fastcomm._measure.units import format_size
from fastcomm.bench.records import read_records
from fastcomm.bench.table import backends_of, measured

Row = dict[str, Any]
Sweep = list[Row]

DEFAULT_SIZES = "8,4K,256K,2M,64M"


def read_sweeps(paths: Sequence[Path]) -> list[Sweep]:
    """The rows of each number of ranks, in order of appearance."""
    rows = [row for path in paths for row in measured(read_records(path).rows)]
    numbers = dict.fromkeys(row["ranks"] for row in rows)
    return [[row for row in rows if row["ranks"] == number] for number in numbers]


def medians(sweep: Sweep, op: str, backend: str) -> dict[int, float]:
    """Median in µs of each size measured, by size."""
    rows = [row for row in sweep if (row["op"], row["backend"]) == (op, backend)]
    return {row["bytes"]: row["median_us"] for row in sorted(rows, key=lambda row: row["bytes"])}


def ratio(sweep: Sweep, op: str, size: int) -> float | None:
    """Last backend over first, at the least size not below ``size``; None if there is none."""
    backends = backends_of(sweep)
    first, last = (medians(sweep, op, backend) for backend in (backends[0], backends[-1]))
    measured = next((nbytes for nbytes in first if nbytes >= size and nbytes in last), None)
    return None if measured is None else last[measured] / first[measured]


def slower(sweep: Sweep) -> list[tuple[str, int, float]]:
    """(operation, size, ratio) where the first backend is the slower one, the worst first."""
    found = []
    for op in dict.fromkeys(row["op"] for row in sweep):
        for size in medians(sweep, op, backends_of(sweep)[0]):
            value = ratio(sweep, op, size)
            if value is not None and value < 1:
                found.append((op, size, value))
    return sorted(found, key=lambda item: item[2])


def format_overview(sweeps: Sequence[Sweep], sizes: Sequence[int], style: str) -> str:
    """Both tables."""
    from tabulate import tabulate

    rows = [row for sweep in sweeps for row in sweep]
    sized = list(dict.fromkeys(row["op"] for row in rows if row["bytes"] > 0))
    unsized = list(dict.fromkeys(row["op"] for row in rows if row["bytes"] == 0))
    first, last = backends_of(rows)[0], backends_of(rows)[-1]
    ranks = [sweep[0]["ranks"] for sweep in sweeps]

    def table(headers: list[str], body: list[list[str]]) -> str:
        align = ("left", *["right"] * (len(headers) - 1))
        return str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))

    of_sizes = table(
        ["operation", *(f"{n} ranks, {format_size(s)}" for n in ranks for s in sizes)],
        [[op, *(_cell(ratio(sweep, op, s)) for sweep in sweeps for s in sizes)] for op in sized],
    )
    headers, body = ["operation"], [[op] for op in unsized]
    for sweep, number in zip(sweeps, ranks, strict=True):
        headers += [f"{number} ranks, {first} [µs]", f"{last} [µs]", "ratio"]
        for line in body:
            both = (medians(sweep, line[0], backend).get(0) for backend in (first, last))
            line += [*map(_cell, both), _cell(ratio(sweep, line[0], 0))]
    return "\n\n".join([*([of_sizes] if sized else []), *([table(headers, body)] if body else [])])


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables, and what is slower than the last backend."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/overview.py", description="Ratios of sweeps, one a file."
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--sizes", type=words.sizes, default=DEFAULT_SIZES, help=DEFAULT_SIZES)
    parser.add_argument("--style", default="github", help="table style: simple, github, ...")
    options = parser.parse_args(argv)
    sweeps = read_sweeps(options.files)
    print(format_overview(sweeps, options.sizes, options.style))
    for sweep in sweeps:
        for op, size, value in slower(sweep):
            of_size = f" of {format_size(size)}" if size else ""
            print(f"slower: {op}{of_size}, {sweep[0]['ranks']} ranks: {value:.2f}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare two result files: ``python -m fastcomm.bench.compare old.jsonl new.jsonl``.

A row regresses when its median grew by more than the threshold.  Machines drift by more than most
changes to the code do; ``--relative-to gloo`` divides each median by that backend's at the same
point first, which cancels what slowed both.

Exit status: 0 no regression, 1 at least one, 2 nothing to compare.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastcomm.bench.records import Records, read_records
from fastcomm.bench.table import measured
from fastcomm.bench.units import format_size

Key = tuple[str, int, str, str, int]


class Change(NamedTuple):
    """One row in both files; ``ratio`` is new over old, above 1 is slower."""

    key: Key
    old: float
    new: float
    ratio: float


def medians(records: Records, relative_to: str | None) -> dict[Key, float]:
    """Median of each row in µs, or relative to the backend named."""

    def key(row: dict[str, Any], backend: str) -> Key:
        return row["op"], row["bytes"], backend, row["dtype"], row["ranks"]

    absolute = {key(row, row["backend"]): float(row["median_us"]) for row in measured(records.rows)}
    if relative_to is None:
        return absolute
    relative = {}
    for row in measured(records.rows):
        reference = absolute.get(key(row, relative_to))
        if reference and row["backend"] != relative_to:
            relative[key(row, row["backend"])] = float(row["median_us"]) / reference
    return relative


def compare(old: Records, new: Records, relative_to: str | None = None) -> list[Change]:
    """Rows that are in both files, in the order of ``new``."""
    before, after = medians(old, relative_to), medians(new, relative_to)
    return [
        Change(key, before[key], value, value / before[key])
        for key, value in after.items()
        if before.get(key)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; see the module's text for the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m fastcomm.bench.compare", description="Compare two result files."
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--threshold", type=float, default=1.25, help="new / old that is a regression (1.25)"
    )
    parser.add_argument("--relative-to", metavar="BACKEND", help="compare ratios to this backend")
    options = parser.parse_args(argv)
    old, new = read_records(options.old), read_records(options.new)
    for name in ("cpu", "affinity", "torch"):
        if old.environment.get(name) != new.environment.get(name):
            print(f"note: {name} {old.environment.get(name)} -> {new.environment.get(name)}")
    changes = compare(old, new, options.relative_to)
    if not changes:
        print("the files have no row in common")
        return 2
    print(_format(changes, options.threshold, options.relative_to))
    worse = [change for change in changes if change.ratio > options.threshold]
    print(f"\n{len(changes)} rows, {len(worse)} slower by more than {options.threshold:g}x")
    return 1 if worse else 0


def _format(changes: list[Change], threshold: float, relative_to: str | None) -> str:
    from tabulate import tabulate

    unit = f"/ {relative_to}" if relative_to else "[µs]"
    body = [
        [
            *(change.key[0], format_size(change.key[1]), change.key[2]),
            *(f"{change.old:.3f}", f"{change.new:.3f}", f"{change.ratio:.2f}"),
            "slower" if change.ratio > threshold else "",
        ]
        for change in changes
    ]
    headers = ["operation", "size", "backend", f"old {unit}", f"new {unit}", "new / old", ""]
    align = ("left", "right", "left", "right", "right", "right", "left")
    return str(tabulate(body, headers, tablefmt="simple", colalign=align, disable_numparse=True))


if __name__ == "__main__":
    sys.exit(main())

"""Compare result files: ``fastcomm compare old.jsonl new.jsonl ...``.

The first file is what the others are compared with. A row regresses when its median grew by more
than the threshold in any of them.  Machines drift by more than most changes to the code do;
``--relative-to gloo`` divides each median by that backend's at the same point first, which cancels
what slowed both.

Exit status: 0 no regression, 1 at least one, 2 nothing to compare.
"""

from __future__ import annotations

import argparse
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastcomm._commands.common import run
from fastcomm._measure.units import format_size
from fastcomm.bench.records import Records, read_records
from fastcomm.bench.table import measured

Key = tuple[str, int, str, str, int]


class Change(NamedTuple):
    """One row that is in all files; ``ratios`` are to the first, above 1 is slower."""

    key: Key
    values: list[float]

    @property
    def ratios(self) -> list[float]:
        return [value / self.values[0] for value in self.values[1:]]


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


def compare(records: Sequence[Records], relative_to: str | None = None) -> list[Change]:
    """Rows that are in all files, in the order of the last."""
    of_files = [medians(each, relative_to) for each in records]
    return [
        Change(key, [each[key] for each in of_files])
        for key in of_files[-1]
        if all(each.get(key) for each in of_files)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; see the module's text for the exit status."""
    parser = argparse.ArgumentParser(
        prog="fastcomm compare",
        description="Compare result files of fastcomm bench with the first of them.",
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("others", type=Path, nargs="+", metavar="file")
    parser.add_argument(
        "--threshold", type=float, default=1.25, help="ratio that is a regression (1.25)"
    )
    parser.add_argument("--relative-to", metavar="BACKEND", help="compare ratios to this backend")
    options = parser.parse_args(argv)
    if len(options.others) >= len(string.ascii_uppercase):
        parser.error(f"at most {len(string.ascii_uppercase)} files")
    return run("fastcomm compare", ("tabulate",), lambda: _compare(options))


def _compare(options: argparse.Namespace) -> int:
    paths = [options.first, *options.others]
    try:
        records = [read_records(path) for path in paths]
    except (OSError, ValueError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    for name in ("cpu", "affinity", "torch"):
        found = [each.environment.get(name) for each in records]
        if len(set(found)) > 1:
            print(f"note: {name} {' -> '.join(map(str, found))}")
    changes = compare(records, options.relative_to)
    if not changes:
        print("the files have no row in common")
        return 2
    names = list(string.ascii_uppercase[: len(paths)])
    for name, path in zip(names, paths, strict=True):
        print(f"{name}: {path}")
    print()
    print(_format(changes, names, options.threshold, options.relative_to))
    worse = [change for change in changes if max(change.ratios) > options.threshold]
    print(f"\n{len(changes)} rows, {len(worse)} slower by more than {options.threshold:g}x")
    return 1 if worse else 0


def _format(
    changes: list[Change], names: list[str], threshold: float, relative_to: str | None
) -> str:
    from tabulate import tabulate

    unit = f"/ {relative_to}" if relative_to else "[µs]"
    with_dtype = len({change.key[3] for change in changes}) > 1
    body = [
        [
            *(change.key[0], format_size(change.key[1]) if change.key[1] else "", change.key[2]),
            *([change.key[3]] if with_dtype else []),
            *(f"{value:.3f}" for value in change.values),
            *(f"{ratio:.2f}" for ratio in change.ratios),
            "slower" if max(change.ratios) > threshold else "",
        ]
        for change in changes
    ]
    headers = ["operation", "size", "backend", *(["dtype"] if with_dtype else [])]
    headers += [f"{name} {unit}" for name in names]
    ratios = [f"{name} / {names[0]}" for name in names[1:]]
    headers += [*ratios, ""]
    numbers = ["right"] * (len(names) + len(ratios))
    align = ("left", "right", "left", *(["left"] if with_dtype else []), *numbers, "left")
    return str(tabulate(body, headers, tablefmt="simple", colalign=align, disable_numparse=True))


if __name__ == "__main__":
    sys.exit(main())

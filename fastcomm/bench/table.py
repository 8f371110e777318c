"""Rows of a sweep as a table of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastcomm._measure.units import format_size

Row = dict[str, Any]


def point_of(row: Row) -> tuple[str, int, str]:
    """(operation, bytes, dtype): what rows of different backends are compared by."""
    return row["op"], row["bytes"], row["dtype"]


def dtypes_of(rows: Sequence[Row]) -> list[str]:
    """Types of elements in order of appearance."""
    return list(dict.fromkeys(row["dtype"] for row in rows))


def backends_of(rows: Sequence[Row]) -> list[str]:
    """Backends in order of appearance."""
    return list(dict.fromkeys(row["backend"] for row in rows))


def measured(rows: Sequence[Row]) -> list[Row]:
    """Rows with times, without those that say why a backend was left out."""
    return [row for row in rows if "median_us" in row]


def left_out(rows: Sequence[Row]) -> list[str]:
    """A line for each reason why a backend was left out, with the operations."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "left_out" in row:
            ops = found.setdefault((row["backend"], row["left_out"]), [])
            ops += [] if row["op"] in ops else [row["op"]]
    return [
        f"{backend} left out of {', '.join(ops)}: {why}" for (backend, why), ops in found.items()
    ]


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

    The last backend to appear is the baseline of the ratio. Where the device's time was taken, a
    column has the host's, and a backend that was timed by the wall's clock is marked. Several types
    of elements have a column, too.
    """
    from tabulate import tabulate

    notes, rows = left_out(rows), measured(rows)
    with_dtype = len(dtypes_of(rows)) > 1
    with_host = any("host_us" in row for row in rows)
    baseline = backends_of(rows)[-1] if rows else "baseline"
    body = []
    previous = ""
    for row, ratio in zip(rows, ratios(rows, baseline), strict=True):
        name, previous = (row["op"] if row["op"] != previous else ""), row["op"]
        sized = row["bytes"] > 0
        host = [_microseconds(row["host_us"]) if "host_us" in row else "wall"]
        body.append(
            [
                name,
                format_size(row["bytes"]) if sized else "",
                *((row["dtype"],) if with_dtype else ()),
                row["backend"],
                *(_microseconds(row[key]) for key in ("min_us", "median_us", "p99_us")),
                *(host if with_host else ()),
                _significant(row["algbw_gbs"]) if sized else "",
                _significant(row["busbw_gbs"]) if sized else "",
                f"{ratio:.1f}" if ratio is not None else "",
            ]
        )
    headers = [
        "operation",
        "size",
        *(["dtype"] if with_dtype else []),
        "backend",
        "min [µs]",
        "median [µs]",
        "p99 [µs]",
        *(["host [µs]"] if with_host else []),
        "algbw [GB/s]",
        "busbw [GB/s]",
        f"{baseline} / this",
    ]
    names = ["left"] * (2 if with_dtype else 1)
    align = ("left", "right", *names, *["right"] * (len(headers) - 2 - len(names)))
    text = str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))
    return "\n".join([text, *notes])


def format_summary(rows: Sequence[Row], style: str = "simple") -> str:
    """One line for each operation, size and type: medians of all backends side by side.

    The ratio is that of the last backend to the first, which is how many times faster the first is.
    """
    from tabulate import tabulate

    notes, rows = left_out(rows), measured(rows)
    backends, with_dtype = backends_of(rows), len(dtypes_of(rows)) > 1
    points: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in rows:
        points.setdefault(point_of(row), {})[row["backend"]] = row["median_us"]
    body = []
    for (op, size, dtype), medians in points.items():
        first, last = (medians.get(name) for name in (backends[0], backends[-1]))
        body.append(
            [
                op,
                format_size(size) if size > 0 else "",
                *([dtype] if with_dtype else []),
                *(_microseconds(medians[name]) if name in medians else "" for name in backends),
                *([f"{last / first:.1f}" if first and last else ""] if len(backends) > 1 else []),
            ]
        )
    headers = ["operation", "size", *(["dtype"] if with_dtype else [])]
    names = len(headers) - 2
    headers += [f"{name} [µs]" for name in backends]
    headers += [f"{backends[-1]} / {backends[0]}"] if len(backends) > 1 else []
    align = ("left", "right", *["left"] * names, *["right"] * (len(headers) - 2 - names))
    text = str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))
    return "\n".join([text, *notes])


def is_of_hosts(rows: Sequence[Row]) -> bool:
    """Tell whether rows are those of `fastcomm.bench.hosts`."""
    return any("link" in row or "host" in row for row in rows)


def format_hosts(rows: Sequence[Row], style: str = "simple") -> str:
    """Three tables, of what is inside each host, of the links, and of the levels of operations."""
    from tabulate import tabulate

    def table(body: list[list[str]], headers: list[str], left: int) -> str:
        align = ["left" if column < left else "right" for column in range(len(headers))]
        return str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))

    def shown(row: Row, key: str, form: Callable[[float], str]) -> str:
        return form(row[key]) if key in row else ""

    inside = [
        [str(row["host"]), _ranks(row["ranks"]), shown(row, "round_trip_us", _microseconds),
         shown(row, "all_reduce_gbs", _significant)]
        for row in rows if "host" in row
    ]  # fmt: skip
    links = [
        [*("{} and {}".format(*row[key]) for key in ("link", "ranks")),
         *(form(row[key]) for key, form in _LINK_COLUMNS.values())]
        for row in rows if "link" in row
    ]  # fmt: skip
    levels = []
    of_levels = measured(rows)
    for whole in (row for row in of_levels if row["backend"] == "fastcomm"):
        beside = {row["backend"]: row for row in of_levels if point_of(row) == point_of(whole)}
        other = beside.get("gloo", {}).get("median_us")
        levels.append(
            [whole["op"], format_size(whole["bytes"]), _microseconds(whole["median_us"]),
             shown(beside.get("inside", {}), "median_us", _microseconds),
             *(shown(whole, key, _microseconds) for key in ("wire_us", "rest_us")),
             whole.get("bound_by", ""), _microseconds(other) if other else "",
             f"{other / whole['median_us']:.1f}" if other else ""]
        )  # fmt: skip
    on_levels = ["operation", "size", "fastcomm [µs]", "inside [µs]", "wire [µs]", "rest [µs]"]
    on_levels += ["bound by", "gloo [µs]", "gloo / fastcomm"]
    tables = [
        table(inside, ["host", "ranks", "round trip [µs]", "all_reduce [GB/s]"], 2),
        table(links, ["hosts", "by ranks", *_LINK_COLUMNS], 2),
        table(levels, on_levels, 1),
    ]
    notes = left_out(rows)
    notes += dict.fromkeys(
        f"not composed of hosts: {row['not_composed']}" for row in rows if "not_composed" in row
    )
    return "\n".join(["\n\n".join(tables), *notes])


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words, as spans: ``0-3, 8``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    return ", ".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in spans)


def _microseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _significant(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


_LINK_COLUMNS = {
    "one way [µs]": ("latency_us", _microseconds),
    "there [Gbit/s]": ("there_gbits", _significant),
    "back [Gbit/s]": ("back_gbits", _significant),
    "both at once, each [Gbit/s]": ("both_gbits", _significant),
}

"""Plot a sweep as PNG: latency and bus bandwidth over size, one column for each operation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcomm._measure.environment import summary_line
from fastcomm._measure.units import format_size
from fastcomm.bench.records import Records
from fastcomm.bench.table import backends_of, dtypes_of, measured, ratios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

# Blue and orange stay apart for colour-blind readers; markers tell them apart in grey.
_COLORS = ("#1f5fa8", "#e07b1a", "#2a8f5b", "#8a4fb0")
_MARKERS = ("o", "s", "^", "D")
_MOST_BESIDE = 6  # operations, before a new line of them begins
_SHADES = ("#333333", "#888888")  # of operations


def write_plot(records: Records, path: Path) -> None:
    """Draw all rows of ``records`` into a new or existing PNG at ``path``."""
    figure = draw(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def draw(records: Records) -> Figure:
    """The figure: sized operations side by side, then a column for the barrier and the speed-up."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = measured(records.rows)
    if not rows:
        raise ValueError("no rows to plot")
    backends, dtypes = backends_of(rows), dtypes_of(rows)
    compared = [row for row in rows if row["dtype"] == dtypes[0]]
    if len(dtypes) > 1:  # a line for each of them
        rows = [{**row, "backend": f"{row['backend']}, {row['dtype']}"} for row in rows]
    sized = list(dict.fromkeys(row["op"] for row in rows if row["bytes"] > 0))
    unsized = [row for row in rows if row["bytes"] == 0]
    beside = min(max(1, len(sized)), _MOST_BESIDE)
    bands = max(1, -(-len(sized) // beside))
    figure = Figure(figsize=(3.9 * (beside + 1), 7.6 * bands), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 * bands, beside + 1, squeeze=False)
    # Of each operation two panels, one above the other; a last column for what all have in common.
    times = [axes[2 * band][column] for band in range(bands) for column in range(beside)]
    speeds = [axes[2 * band + 1][column] for band in range(bands) for column in range(beside)]
    _share_heights([*times[: len(sized)], axes[0][-1]])
    _share_heights(speeds[: len(sized)])
    for time, speed, op in zip(times, speeds, sized, strict=False):
        of_op = [row for row in rows if row["op"] == op]
        _draw_latency(time, of_op, rows)
        _draw_bandwidth(speed, of_op, rows)
        time.set_title(op, fontweight="bold")
    unused = [*times[len(sized) :], *speeds[len(sized) :], *(row[-1] for row in axes[2:])]
    for panel in unused:
        panel.set_axis_off()
    _draw_unsized(axes[0][-1], unsized, rows)
    _draw_speed_up(axes[1][-1], compared, sized)
    for band in range(bands):
        axes[2 * band][0].set_ylabel("time of a call: median, min to p99")
        axes[2 * band + 1][0].set_ylabel("bus bandwidth at the median [GB/s]")
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:  # below the panels, so that it covers no line however many there are
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False
        )
    ranks, types = rows[0]["ranks"], " and ".join(dtypes)
    where = rows[0].get("device", "CPU")
    figure.suptitle(
        f"Collectives on {ranks} {where} ranks, {types}, {' and '.join(backends)} "
        f"interleaved in one run\n{summary_line(records.environment)}",
        fontsize=11,
    )
    return figure


def _share_heights(axes: Sequence[Axes]) -> None:
    """One vertical scale for a row of panels, so that operations can be compared by eye."""
    for other in axes[1:]:
        other.sharey(axes[0])


def _format_time(microseconds: float) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:.3g} {unit}"
    return f"{microseconds:.3g} µs"


def _time_axis(axes: Axes) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: _format_time(value))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(True, axis="y", which="major", color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _style(backend: str, rows: Sequence[Row]) -> dict[str, Any]:
    index = backends_of(rows).index(backend) % len(_COLORS)
    return {"color": _COLORS[index], "marker": _MARKERS[index], "markersize": 4.5, "linewidth": 1.6}


def _size_axis(axes: Axes, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import NullLocator

    sizes = sorted({row["bytes"] for row in rows if row["bytes"] > 0})
    axes.set_xscale("log", base=2)
    marks = sizes if len(sizes) <= 6 else sizes[::2]
    axes.set_xticks(marks, [format_size(size) for size in marks], rotation=35, ha="right")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_latency(axes: Axes, rows: Sequence[Row], every: Sequence[Row]) -> None:
    for backend in backends_of(rows):
        mine = sorted((r for r in rows if r["backend"] == backend), key=lambda r: int(r["bytes"]))
        sizes = [row["bytes"] for row in mine]
        style = _style(backend, every)
        axes.plot(sizes, [row["median_us"] for row in mine], label=backend, **style)
        low, high = [row["min_us"] for row in mine], [row["p99_us"] for row in mine]
        axes.fill_between(sizes, low, high, color=style["color"], alpha=0.15, linewidth=0)
    _time_axis(axes)
    _size_axis(axes, rows)


def _draw_bandwidth(axes: Axes, rows: Sequence[Row], every: Sequence[Row]) -> None:
    from matplotlib.ticker import NullLocator

    for backend in backends_of(rows):
        mine = sorted((r for r in rows if r["backend"] == backend), key=lambda r: int(r["bytes"]))
        # One rank moves nothing between ranks, and a log axis has no zero.
        points = [(row["bytes"], row["busbw_gbs"]) for row in mine if row["busbw_gbs"] > 0]
        if points:
            sizes, values = zip(*points, strict=True)
            axes.plot(sizes, values, label=backend, **_style(backend, every))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    _size_axis(axes, rows)


def _draw_unsized(axes: Axes, rows: Sequence[Row], every: Sequence[Row]) -> None:
    """Operations without size: a point for each backend, with a bar from min to p99."""
    if not rows:
        axes.set_axis_off()
        return
    for position, row in enumerate(rows):
        style = _style(row["backend"], every)
        median = row["median_us"]
        bar = [[median - row["min_us"]], [row["p99_us"] - median]]
        style.update(markersize=8, capsize=5)
        axes.errorbar([position], [median], yerr=bar, **style)
        axes.annotate(
            _format_time(median), (position, median), xytext=(10, -3), textcoords="offset points"
        )
    _time_axis(axes)
    names = [row["backend"] for row in rows]
    axes.set_xticks(range(len(rows)), names)
    if len(rows) > 3:
        axes.tick_params(axis="x", labelrotation=35)
    axes.set_xlim(-0.5, len(rows) - 0.1)
    axes.set_title(" / ".join(dict.fromkeys(row["op"] for row in rows)), fontweight="bold")


def _draw_speed_up(axes: Axes, rows: Sequence[Row], sized: Sequence[str]) -> None:
    """Median of the last backend over that of the first, for each operation."""
    from matplotlib.ticker import LogLocator, NullLocator

    backends = backends_of(rows)
    if len(backends) < 2 or not sized:
        axes.set_axis_off()
        return
    first, baseline = backends[0], backends[-1]
    styles = itertools.cycle(itertools.product(_SHADES, ("-", "--", ":", "-."), ("o", "^", "D")))
    for op, (shade, line, marker) in zip(sized, styles, strict=False):
        of_op = [row for row in rows if row["op"] == op]
        points = [
            (row["bytes"], ratio)
            for row, ratio in zip(of_op, ratios(of_op, baseline), strict=True)
            if ratio is not None and row["backend"] == first
        ]
        if points:
            sizes, values = zip(*sorted(points), strict=True)
            axes.plot(sizes, values, line, marker=marker, markersize=4, color=shade, label=op)
    axes.axhline(1, color="#bb3333", linewidth=1)
    axes.set_yscale("log")
    _size_axis(axes, rows)
    axes.set_title(f"speed-up: {baseline} / {first}", fontweight="bold")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.yaxis.set_minor_locator(NullLocator())
    # Beside the panel: the layout makes room for it.
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, fontsize=8)

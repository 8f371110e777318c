"""Picture of a check: bandwidth between every two devices for each path, and times beside stock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcomm._measure.units import format_size
from fastcomm.check.checker import Row
from fastcomm.check.report import links_of, paths_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^", "D")


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draw a check into a new or existing PNG at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(rows).savefig(path, dpi=130)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw one panel of times, and one of links for each path that has them.

    Raises:
        ValueError: nothing was timed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    speeds = [row for row in rows if row["check"] == "speed" and "median_us" in row]
    linked = {name: found for name, of in paths_of(rows).items() if (found := links_of(of))}
    if not speeds and not linked:
        raise ValueError("nothing was timed")
    columns = 1 + len(linked)
    figure = Figure(figsize=(5.2 * columns, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    _draw_speeds(axes[0], speeds)
    for axis, (name, links) in zip(axes[1:], linked.items(), strict=True):
        _draw_links(figure, axis, name, links)
    return figure


def _draw_speeds(axis: Any, speeds: Sequence[Row]) -> None:
    """Draw points, not bars: a logarithmic scale has no zero for a bar to start at."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    labels = [f"{row['path']}, {row['operation']} {format_size(row['bytes'])}" for row in speeds]
    series: dict[str, list[tuple[float, int]]] = {"fastcomm": []}
    for place, row in enumerate(speeds):
        series["fastcomm"].append((row["median_us"], place))
        for name, us in row["beside"].items():
            series.setdefault(name, []).append((us, place))
    for (name, points), marker in zip(series.items(), _MARKERS, strict=False):
        if points:
            axis.plot(*zip(*points, strict=True), marker, label=name, markersize=8)
    axis.set_yticks(range(len(speeds)), labels)
    axis.set_ylim(len(speeds) - 0.5, -0.5)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.4)
    axis.set_xlabel("median time [µs]")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(series), frameon=False)


def _draw_links(figure: Figure, axis: Any, name: str, links: dict[tuple[int, int], Row]) -> None:
    count = 1 + max(max(pair) for pair in links)
    grid = [
        [links.get((s, t), {}).get("gbs", float("nan")) for t in range(count)] for s in range(count)
    ]
    image = axis.imshow(grid, cmap="viridis", vmin=0)
    for (source, target), row in links.items():
        text = f"{row['gbs']:.0f}" if "gbs" in row else row["verdict"]
        fast = row.get("gbs", 0) > 0.6 * image.norm.vmax  # there the colours are light
        color = "black" if fast else "white"
        axis.text(target, source, text, ha="center", va="center", color=color, fontsize=9)
    axis.set_xticks(range(count))
    axis.set_yticks(range(count))
    axis.set_xlabel("to device")
    axis.set_ylabel("from device")
    axis.set_title(f"{name} [GB/s]")
    figure.colorbar(image, ax=axis, shrink=0.8)

"""How far two loss curves are from each other, behind a moving mean, and a picture of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastcomm.bench.environment import summary_line
from fastcomm.bench.records import Records

WINDOW = 20


@dataclass(frozen=True)
class Deviation:
    """Relative differences of a curve from the reference: the largest with its step, the last."""

    largest: float
    at_step: int
    final: float


def smoothed(losses: Sequence[float], window: int = WINDOW) -> list[float]:
    """Means of ``window`` losses in a row: ``window - 1`` values fewer; of fewer losses their mean.

    Raises:
        ValueError: no losses.
    """
    if not losses:
        raise ValueError("no losses")
    window = min(window, len(losses))
    return [sum(losses[i : i + window]) / window for i in range(len(losses) - window + 1)]


def deviation(
    losses: Sequence[float], reference: Sequence[float], window: int = WINDOW
) -> Deviation:
    """Compare two smoothed curves of as many steps. A NaN anywhere is an infinite difference."""
    pairs = zip(smoothed(losses, window), smoothed(reference, window), strict=True)
    differences = [abs(a - b) / b for a, b in pairs]
    differences = [d if d == d else float("inf") for d in differences]
    largest = max(differences)
    at = differences.index(largest) + min(window, len(losses))
    return Deviation(largest, at, differences[-1])


def write_plot(records: Records, reference: str, path: Path) -> None:
    """Draw the curves, and below them how far each is from ``reference``, into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in records.rows if "losses" in row]
    (base,) = (row["losses"] for row in rows if row["variant"] == reference)
    figure = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(figure)
    curves, differences = figure.subplots(2, 1, sharex=True)
    start = min(WINDOW, len(base))
    steps = range(start, len(base) + 1)
    styles = ("-", "--", ":", "-.")
    for number, row in enumerate(rows):
        look: dict[str, Any] = {"label": row["variant"], "linewidth": 1.4}
        look |= {"linestyle": styles[number % len(styles)], "color": f"C{number % 10}"}
        values = smoothed(row["losses"])
        curves.plot(steps, values, **look)
        if row["variant"] != reference:
            percent = [100 * abs(a - b) / b for a, b in zip(values, smoothed(base), strict=True)]
            # A log axis has no zero: where the losses are the same there is no line.
            differences.plot(steps, [value or None for value in percent], **look)
    differences.axhline(1, color="#bb3333", linewidth=1)
    differences.set_ylabel(f"difference from {reference}, as far as there is one [%]")
    differences.set_yscale("log")
    curves.set_ylabel(f"loss, mean of {WINDOW} steps [nats a byte]")
    differences.set_xlabel("step")
    curves.legend(frameon=False, fontsize=8)
    for axes in (curves, differences):
        axes.grid(True, color="#dddddd", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"A transformer trained over {rows[0]['ranks']} CPU ranks\n"
        f"{summary_line(records.environment)}",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)

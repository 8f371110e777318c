"""The advice as a picture: parts of a step, against the number of devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastcomm._advise.findings import Findings
from fastcomm._advise.predict import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In the order of a step, and apart for colour-blind readers.
_COLORS = {
    "loading": "#bbbbbb",
    "forward": "#1f5fa8",
    "backward": "#2a8f5b",
    "optimizer": "#8a4fb0",
    "communication": "#e07b1a",
}


def write_plot(advice: Findings, path: Path) -> None:
    """Draw the predictions into a new or existing PNG at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(advice).savefig(path, dpi=130)


def draw(advice: Findings) -> Figure:
    """The figure: a bar for each prediction, and a mark for what was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = advice.predictions
    figure = Figure(figsize=(2.2 + 1.5 * len(shown), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, each in enumerate(shown):
        below = 0.0
        whole = sum(each.parts.values())
        for name, color in _COLORS.items():
            # Parts are means, a step's time is a median.
            height = 1e3 * each.seconds * each.parts.get(name, 0.0) / whole
            axes.bar(place, height, bottom=below, color=color, width=0.6, label=_once(name, place))
            below += height
        if each.measured is not None and each.devices > 1:
            label = _once("measured", place - 1)
            axes.plot([place - 0.36, place + 0.36], [1e3 * each.measured] * 2, "k--", label=label)
        times = f"{each.rows_per_second:,.0f} samples/s\n{advice.times_as_fast(each):.2f} times"
        axes.annotate(times, (place, below), (0, 4), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(shown)), [_label(each) for each in shown])
    axes.set_ylabel("ms a step")
    axes.margins(y=0.15)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda at: [*_COLORS, "measured"].index(labels[at]))
    axes.legend(
        [handles[at] for at in order],
        [labels[at] for at in order],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
    )
    axes.set_title(advice.sentence, fontsize=8, wrap=True)
    return figure


def _label(prediction: Prediction) -> str:
    return f"{prediction.way}\n{prediction.devices} x {prediction.share}"


def _once(label: str, place: int) -> str:
    return label if place == 0 else "_nolegend_"

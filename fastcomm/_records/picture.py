"""The latest collectives of ranks as a picture: who waited, who was waited for, when data moved."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastcomm._records.collectives import Collective, matched
from fastcomm._records.ranks import Rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 40  # collectives, from the latest
# As in the plots of bench; waiting is the paler one.
_WAITING, _MOVING, _LATE = "#e8b27a", "#1f5fa8", "#b02a2a"


def write_picture(path: str | os.PathLike[str], ranks: Sequence[Rank]) -> None:
    """Draw the latest collectives into a file, whose ending says what it is: png, svg, pdf.

    Raises:
        ValueError: no collective is there, or no such pictures can be drawn.
        OSError: the file cannot be written.
    """
    draw(ranks).savefig(path, dpi=130)


def draw(ranks: Sequence[Rank]) -> Figure:
    """Draw a row for each rank, its calls on a time axis in milliseconds.

    Raises:
        ValueError: no collective is there.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = matched(ranks)[-_MOST:]
    if not shown:
        raise ValueError("there is no collective to draw")
    zero = min(call.issued for each in shown for call in each.calls.values())
    rows = {rank.number: row for row, rank in enumerate(ranks)}
    figure = Figure(figsize=(12, 1.6 + 0.45 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    now = max(rank.now for rank in ranks)
    for each in shown:
        for number in each.calls:
            _draw_call(axis, rows[number], each, number, zero, now)
    axis.set_yticks(list(rows.values()), [f"rank {number}" for number in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel("time [ms]")
    axis.grid(axis="x", alpha=0.4)
    for color, label in ((_WAITING, "waiting"), (_MOVING, "moving data")):
        axis.barh(-10, 0, color=color, label=label)
    axis.plot([], [], "v", color=_LATE, label="came last")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


def _draw_call(
    axis: Any, row: int, collective: Collective, number: int, zero: int, now: int
) -> None:
    call = collective.calls[number]
    end = now if call.ended is None else call.ended
    met = min(call.issued + collective.wait(number), end) if call.started or call.ended else end
    begin, middle = (call.issued - zero) / 1e6, (met - zero) / 1e6
    axis.barh(row, middle - begin, left=begin, height=0.6, color=_WAITING)
    axis.barh(row, (end - met) / 1e6, left=middle, height=0.6, color=_MOVING)
    if collective.straggler == number and collective.lateness > 0:
        axis.plot(begin, row - 0.4, "v", color=_LATE, markersize=5)

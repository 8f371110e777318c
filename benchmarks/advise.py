"""Predictions of ``fastcomm.advise`` beside what was measured, for five models and two batches.

    python benchmarks/advise.py --json benchmarks/results/advise.jsonl --plot docs/images/advise.png
    python benchmarks/advise.py --json FILE --crowded     # while others use a core, too
    python benchmarks/advise.py --show benchmarks/results/advise.jsonl

``--show`` prints errors by model and way, with times as fast as one process as measured in
brackets, and how many predictions were near what was measured; with ``--all`` each prediction.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fastcomm
from fastcomm._measure.environment import describe, summary_line

BATCHES = (8, 64)
NEAR = 0.15  # an error
STEADY = 0.05  # repeats that differ by less
CLEAR = 0.10  # above it one of two ways is the faster one

_COLORS = ("#1f5fa8", "#e07b1a", "#2a8f5b", "#8a4fb0", "#333333")
_MARKERS = "os^Dv"

Batch = Callable[[int], torch.Tensor]
Row = dict[str, Any]


class Bags(nn.Module):
    """Much embedding, little else."""

    def __init__(self, words: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.embedding(words))
        return result


class Sequences(nn.Module):
    """A transformer or an LSTM that predicts the next word."""

    def __init__(self, kind: str, words: int = 2000, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.body: nn.Module
        if kind == "LSTM":
            self.body = nn.LSTM(width, width, 2, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states = self.body(self.embedding(words))
        result: torch.Tensor = self.head(
            (states[0] if isinstance(states, tuple) else states)[:, -1]
        )
        return result


def model_of(kind: str) -> tuple[nn.Module, Batch, int]:
    """Return a model, its batches of so many rows, and how many classes it tells apart."""
    torch.manual_seed(0)
    if kind == "MLP":
        layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        return nn.Sequential(*layers), lambda rows: torch.randn(rows, 1024), 1024
    if kind == "CNN":
        convolutions: list[nn.Module] = []
        for inner, outer, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2)):
            convolutions += [nn.Conv2d(inner, outer, 3, stride=stride, padding=1), nn.ReLU()]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
        return nn.Sequential(*convolutions, *head), lambda rows: torch.randn(rows, 3, 32, 32), 10
    if kind == "embedding":
        return Bags(), lambda rows: torch.randint(0, 100_000, (rows, 20)), 10
    length = 32 if kind == "transformer" else 16
    return Sequences(kind), lambda rows: torch.randint(0, 2000, (rows, length)), 2000


KINDS = ("MLP", "CNN", "embedding", "transformer", "LSTM")


@contextlib.contextmanager
def _crowded(crowded: bool) -> Iterator[None]:
    """Let another process use a core meanwhile."""
    if not crowded:
        yield
        return
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def run(kinds: Sequence[str], turns: int) -> Iterator[Row]:
    """Yield rows of predictions and measurements, and the sentence, of each model and batch."""
    for kind, rows in itertools.product(kinds, BATCHES):
        model, batch, classes = model_of(kind)
        print(f"{kind}, {rows} rows", file=sys.stderr)
        advice = fastcomm.advise(
            model,
            (batch(rows), torch.randint(0, classes, (rows,))),
            nn.CrossEntropyLoss(),
            ranks=[2],
            verify=True,
            turns=turns,
        )
        of = {"model": kind, "batch": rows}
        one = advice.one.rows_per_second
        for each in [*advice.predictions, *advice.settings]:
            if each.measured is not None:
                measured = {"measured_times": each.rows / each.measured / one}
                times = {"times": advice.times_as_fast(each), **measured}
                yield {"type": "row", **of, **each.as_json(), **times}
        yield {"type": "advice", **of, "sentence": advice.sentence}


def summary(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return how many predictions were near, and how many answers right."""
    several = _several(rows)
    steady = [row for row in several if row["spread"] < STEADY]
    clear = [row for row in several if abs(row["measured_times"] - 1) > CLEAR]
    right = [row for row in clear if (row["times"] > 1) == (row["measured_times"] > 1)]
    return [
        (f"within {NEAR:.0%} of what was measured", _near(several)),
        (f"the same, where repeats differ by less than {STEADY:.0%}", _near(steady)),
        (
            f"right on whether 2 are faster than 1, where the difference is above {CLEAR:.0%}",
            f"{len(right)} of {len(clear)}",
        ),
    ]


def _several(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["type"] == "row" and row["devices"] > 1]


def _near(rows: Sequence[Row]) -> str:
    return f"{sum(abs(row['error']) <= NEAR for row in rows)} of {len(rows)}"


def tables(rows: Sequence[Row], style: str, everything: bool) -> str:
    """Return tables of a record: all rows, or errors by model and way, and the summary."""
    from tabulate import tabulate

    shown = _all_rows(rows) if everything else _errors(rows)
    words = 2 if everything else 1  # columns
    aligned = ["left"] * words + ["right"] * (len(shown[0]) - words)
    main = tabulate(shown, "keys", style, colalign=aligned, disable_numparse=True)
    return f"{main}\n\n{counted(rows, style)}"


def counted(rows: Sequence[Row], style: str) -> str:
    """Return the table of how many predictions were right."""
    from tabulate import tabulate

    counts: str = tabulate(summary(rows), ("predictions", ""), style, disable_numparse=True)
    return counts


def _all_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    return [
        {
            "model": row["model"],
            "way": row["way"].removeprefix("DDP, "),
            "batch": f"{row['devices']} x {row['rows'] // row['devices']}",
            "predicted ms": f"{1e3 * row['seconds']:.2f}",
            "measured ms": f"{1e3 * row['measured']:.2f}",
            "error": f"{row['error']:+.0%}",
            "repeats": f"{row['spread']:.0%}",
            "times as fast": f"{row['times']:.2f}",
            "measured": f"{row['measured_times']:.2f}",
        }
        for row in _several(rows)
    ]


def _errors(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return a row for each model and batch, with the error of each way and what was measured."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for row in _several(rows):
        line = found.setdefault(
            (row["model"], row["batch"]), {"model": row["model"], "batch": str(row["batch"])}
        )
        divided = row["way"] == "DDP" and row["rows"] == row["batch"]
        way = "DDP, batch divided" if divided else row["way"]
        line[way] = f"{row['error']:+.0%} ({row['measured_times']:.2f})"
    return list(found.values())


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draw predictions against measurements."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    several = _several(rows)
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    for place, kind in enumerate(KINDS):
        mine = [row for row in several if row["model"] == kind]
        for panel, predicted, measured, unit in (
            (panels[0], "seconds", "measured", 1e3),
            (panels[1], "times", "measured_times", 1.0),
        ):
            panel.plot(
                [unit * row[measured] for row in mine],
                [unit * row[predicted] for row in mine],
                _MARKERS[place],
                color=_COLORS[place],
                label=kind,
            )
    for panel, what in zip(panels, ("ms a step", "times as fast as one process"), strict=True):
        ends = [0.9 * min(panel.dataLim.intervalx), 1.1 * max(panel.dataLim.intervalx)]
        panel.plot(ends, ends, color="#888888", lw=1)
        within = [[end * factor for end in ends] for factor in (1 - NEAR, 1 + NEAR)]
        panel.fill_between(ends, *within, color="#888888", alpha=0.15, lw=0)
        panel.set_xlabel(f"measured {what}")
        panel.set_ylabel(f"predicted {what}")
    panels[0].set_xscale("log")
    panels[0].set_yscale("log")
    panels[1].axvline(1, color="#888888", lw=0.5)
    panels[1].axhline(1, color="#888888", lw=0.5)
    panels[0].legend(frameon=False)
    figure.suptitle(summary_line(rows[0]), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or show a record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--models", default=",".join(KINDS), help="some of: %(default)s")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--crowded", action="store_true", help="another process uses a core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="record to write, line by line")
    parser.add_argument("--show", type=Path, metavar="FILE", help="a record to show instead")
    parser.add_argument("--all", action="store_true", help="show each prediction")
    parser.add_argument("--summary", action="store_true", help="show how many were right alone")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG to draw")
    parser.add_argument("--style", default="simple", help="of the table: simple or github")
    options = parser.parse_args(arguments)
    if options.show is not None:
        rows = [json.loads(line) for line in options.show.read_text().splitlines()]
    else:
        words = sys.argv[1:] if arguments is None else arguments
        rows = [{"type": "environment", **describe(["benchmarks/advise.py", *words])}]
        with _crowded(options.crowded):
            rows += run(options.models.split(","), options.turns)
        if options.json is not None:
            options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(
        counted(rows, options.style)
        if options.summary
        else tables(rows, options.style, options.all)
    )
    if options.plot is not None:
        write_plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

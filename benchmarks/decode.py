"""Tokens a second of a small LLaMA, cut over two ranks on CPUs, by what sums over the ranks.

    python benchmarks/decode.py --json benchmarks/results/decode.jsonl --plot docs/images/decode.png
    python benchmarks/decode.py --show benchmarks/results/decode.jsonl

Batch 1, bfloat16, a thread for each rank, which is bound to a core, and random weights
(`decode_model`): short messages, two to a layer, with little to compute between them. Each way to
sum decodes as many tokens, by turns, in plain code and in compiled code: blocks of 8 layers, of
which one takes 10 to 20 s to compile, and its code serves all of them. 32 layers as one graph would
be 4 % faster, and take twice as long to compile.

``fastcomm, operator`` is ``torch.ops.fastcomm.all_reduce_``; ``fastcomm, c10d`` is
``dist.all_reduce``, in compiled code ``torch.distributed._functional_collectives.all_reduce``.
DeepSpeed's is its ``inference_all_reduce_`` in shared memory, if it is installed. ``none`` is an
operator that does nothing.

``a sum`` is what a token takes longer than over ``none``, in the same round and code, for each of
the sums: with what ranks wait for each other. ``alone`` is a sum of as many bytes without a model.
``floor`` is a bare program, which has float32 only: half as many numbers, and as many bytes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decode_model import Shape
from decode_ranks import COMPILED, EAGER, NONE, measure_on_rank

import fastcomm
from fastcomm._measure.environment import describe, summary_line
from fastcomm.bench.records import Records, RecordWriter, read_records

RANKS = 2
# A rank has one core: compilers beside it would be in its way.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

Row = dict[str, Any]


def run(shape: Shape, kinds: Sequence[str], *method: float) -> list[Row]:
    """Return rows of all ways with a model, and what each sum takes in it."""
    rows = fastcomm.launch(
        measure_on_rank,
        (shape, tuple(kinds), *method),
        ranks=RANKS,
        bind=True,
        env=_ENVIRONMENT,
        timeout=300,
    )[0]
    idle = {row["kind"]: row["batch_median_us"] for row in rows if row["over"] == NONE}
    for row in rows:
        if row["over"] != NONE and "batch_median_us" in row:
            pairs = zip(row["batch_median_us"], idle[row["kind"]], strict=True)
            more = statistics.median(own - without for own, without in pairs)
            row["sum_us"] = round(more / (2 * shape.layers), 2)
    of = {"hidden": shape.hidden, "layers": shape.layers, "ranks": RANKS, "bytes": 2 * shape.hidden}
    return [{**of, **row} for row in rows]


def table(rows: Sequence[Row], style: str) -> str:
    """Return a table, and a line for each way that is left out."""
    from tabulate import tabulate

    shown = [_line(row) for row in rows if "left_out" not in row]
    aligned = ["right", "left", "left", *["right"] * (len(shown[0]) - 3)]
    lines = [tabulate(shown, "keys", style, colalign=aligned, disable_numparse=True)]
    for row in rows:
        if "left_out" in row:
            lines.append(f"{row['hidden']}: {row['over']}, {row['kind']}: {row['left_out']}")
    return "\n".join(lines)


def _line(row: Row) -> dict[str, str]:
    def number(key: str, form: str, unit: float = 1.0) -> str:
        return format(row[key] / unit, form) if key in row else ""

    return {
        "hidden": str(row["hidden"]),
        "over": row["over"],
        "code": row["kind"],
        "tokens/s": number("tokens_per_s", ".1f"),
        "median [ms]": number("median_us", ".2f", 1e3),
        "p99 [ms]": number("p99_us", ".2f", 1e3),
        "a sum [µs]": number("sum_us", ".1f"),
        "alone [µs]": number("alone_us", ".2f"),
    }


def write_plot(records: Records, path: Path) -> None:
    """Draw tokens a second of each way, a panel for each model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in records.rows if "tokens_per_s" in row]
    models = list(dict.fromkeys(row["hidden"] for row in rows))
    ways = list(dict.fromkeys(row["over"] for row in rows))
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for panel, hidden in zip(panels, models, strict=True):
        for kind, color, shift in ((EAGER, "#9db8d9", -0.2), (COMPILED, "#1f5fa8", 0.2)):
            mine = [row for row in rows if (row["hidden"], row["kind"]) == (hidden, kind)]
            places = [ways.index(row["over"]) + shift for row in mine]
            heights = [row["tokens_per_s"] for row in mine]
            bars = panel.bar(places, heights, 0.4, color=color, label=kind)
            panel.bar_label(bars, fmt="%.3g", fontsize=8)
        names = ["nothing\nsent" if way == NONE else way.replace(", ", "\n") for way in ways]
        panel.set_xticks(range(len(ways)), names, fontsize=8)
        panel.set_title(f"hidden {hidden}", fontsize=10)
        panel.set_ylabel("tokens a second")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(summary_line(records.environment), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or show a record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--hidden", default="256,1024", help="widths of models (%(default)s)")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds for each model (40)")
    parser.add_argument(
        "--tokens", type=int, default=0, help="of each way in a round, whatever the budget is"
    )
    parser.add_argument("--kinds", default=f"{EAGER},{COMPILED}", help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="record to write, line by line")
    parser.add_argument("--show", type=Path, metavar="FILE", help="a record to show instead")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG to draw")
    parser.add_argument("--style", default="simple", help="of the table: simple or github")
    options = parser.parse_args(arguments)
    if options.show is not None:
        records = read_records(options.show)
    else:
        method = (options.rounds, options.tokens, options.budget)
        shapes = [Shape(int(hidden), options.layers) for hidden in options.hidden.split(",")]
        rows = [row for shape in shapes for row in run(shape, options.kinds.split(","), *method)]
        words = ["benchmarks/decode.py", *(sys.argv[1:] if arguments is None else arguments)]
        records = Records(describe(words), rows)
        if options.json is not None:
            with RecordWriter(options.json, words) as writer:
                for row in rows:
                    writer.write(row)
    print(table(records.rows, options.style))
    if options.plot is not None:
        write_plot(records, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Train a small transformer with 16 bits on the wire, and compare its loss curve with that of fp32.

    python benchmarks/wire_training.py [--json benchmarks/results/wire-training.jsonl]
    python benchmarks/wire_training.py --show benchmarks/results/wire-training.jsonl

Bytes of the standard library's source, 16 sequences of 128 bytes a step over all ranks, AdamW. The
variants (`wire_variants.VARIANTS`) start with the same weights and see the same data in the same
order. Two say what a difference means: "other order" sees other sequences, and "twice the ranks"
the same ones over twice as many processes, so that only the rounding of sums is another.

Losses are means over the ranks. Exit status 1 if bf16 on the wire is not within 1 % of fp32 over
the whole curve, ranks ended with different weights, or fastcomm failed; what torch's own hooks
raise is recorded.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from digits import digest  # noqa: E402
from loss_curves import WINDOW, deviation, smoothed, write_plot  # noqa: E402
from small_transformer import CONTEXT, Transformer, next_byte_loss  # noqa: E402
from stdlib_text import batch, load_text  # noqa: E402
from wire_variants import CLAIMED, REFERENCE, VARIANTS, Variant  # noqa: E402

from fastcomm.bench.environment import describe, hide_paths  # noqa: E402
from fastcomm.bench.launch import RankError, launch  # noqa: E402
from fastcomm.bench.rank import Rank  # noqa: E402
from fastcomm.bench.records import Records, RecordWriter, read_records  # noqa: E402

CLAIM = 0.01
SEQUENCES = 16  # of a step, over all ranks
WARM_UP = 50  # steps
LEARNING_RATE = 1e-3
SECONDS_A_STEP = 10  # at most


def train(rank: Rank, variant: Variant, steps: int) -> tuple[list[float], str]:
    """The losses of one rank, and a digest of its weights at the end."""
    if SEQUENCES % rank.size:
        raise ValueError(f"{SEQUENCES} sequences cannot be dealt evenly to {rank.size} ranks")
    dist.init_process_group(variant.backend)
    text = load_text()
    torch.manual_seed(0)
    model = Transformer()
    ddp = variant.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP)
    )
    losses = []
    for step in range(steps):
        mine = batch(text, step, variant.order, SEQUENCES, CONTEXT + 1)[rank.rank :: rank.size]
        optimizer.zero_grad()
        loss = next_byte_loss(ddp, mine)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        rank.report(step)
    dist.destroy_process_group()
    return losses, digest(dict(model.named_parameters()))


def row_of(name: str, ranks: int, steps: int) -> dict[str, Any]:
    """Train one variant. What a rank raised stands in the row's ``error`` instead of losses."""
    variant = VARIANTS[name]
    text = load_text()
    row: dict[str, Any] = {"benchmark": "wire_training", "variant": name, "stock": variant.stock}
    row |= {"ranks": ranks * variant.times_ranks, "steps": steps, "order": variant.order}
    row |= {"text_bytes": len(text.values), "text_sha256": text.sha256}
    row |= {"weights": sum(p.numel() for p in Transformer().parameters())}
    try:
        with tqdm(total=steps, desc=name, leave=False) as bar:
            told = launch(
                train,
                row["ranks"],
                variant,
                steps,
                timeout_s=120 + SECONDS_A_STEP * steps,
                on_message=lambda rank, _: bar.update(rank == 0),
            )
    except RankError as error:
        return row | {"error": hide_paths(str(error.__cause__ or error).splitlines()[-1])}
    of_ranks, digests = zip(*told, strict=True)
    row |= {"weights_equal_on_all_ranks": len(set(digests)) == 1, "weights_sha256": digests[0]}
    return row | {"losses": [math.fsum(s) / len(s) for s in zip(*of_ranks, strict=True)]}


def format_table(rows: Sequence[dict[str, Any]], style: str = "simple") -> str:
    """A line for each variant, compared with the reference if that is there."""
    from tabulate import tabulate

    base = {row["variant"]: row.get("losses") for row in rows}.get(REFERENCE)
    body = []
    for row in rows:
        line = [row["variant"], row["ranks"], "failed"]
        if "losses" in row:
            line[2:] = [f"{smoothed(row['losses'])[-1]:.5f}"]
            if base and row["variant"] != REFERENCE:
                found = deviation(row["losses"], base)
                line += [f"{found.largest:.1e}", found.at_step, f"{found.final:.1e}"]
                line[3:] = line[3:] if found.largest else ["none"]
        body.append(line)
    headers = ["variant", "ranks", "loss at the end", "largest difference", "at step"]
    headers += ["difference at the end"]
    align = ("left", *["right"] * 5)
    return str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))


def holds(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether fastcomm did not fail, all ranks have equal weights, and the claim if measured."""
    if not all(row.get("weights_equal_on_all_ranks", row["stock"]) for row in rows):
        return False
    losses = {row["variant"]: row["losses"] for row in rows if "losses" in row}
    if REFERENCE not in losses or CLAIMED not in losses:
        return True
    return deviation(losses[CLAIMED], losses[REFERENCE]).largest <= CLAIM


def show(records: Records, style: str, plot: Path | None) -> int:
    """Print the table, draw the curves, and say whether the claim holds."""
    print(format_table(records.rows, style))
    for row in records.rows:
        if "error" in row:
            print(f"{row['variant']}: {row['error']}")
    if plot is not None and any(r["variant"] == REFERENCE and "losses" in r for r in records.rows):
        write_plot(records, REFERENCE, plot)
    good = holds(records.rows)
    print(f"\nlosses are means of {WINDOW} steps")
    if {REFERENCE, CLAIMED} <= {row["variant"] for row in records.rows}:
        print(f"{CLAIMED} within {CLAIM:.0%}: {'holds' if good else 'DOES NOT HOLD'}")
    return 0 if good else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--json", type=Path, help="write rows here, and a plot beside them")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only show a result file")
    parser.add_argument("--style", default="simple", help="table style: simple, github, ...")
    chosen = parser.parse_args(arguments)
    if chosen.show:
        return show(read_records(chosen.show), chosen.style, chosen.show.with_suffix(".png"))
    writer = RecordWriter(chosen.json, sys.argv) if chosen.json else None
    records = Records(writer.environment if writer else describe(sys.argv))
    for name in chosen.variants:
        records.rows.append(row_of(name, chosen.ranks, chosen.steps))
        if writer:
            writer.write(records.rows[-1])
    if writer:
        writer.close()
    return show(records, chosen.style, chosen.json.with_suffix(".png") if chosen.json else None)


if __name__ == "__main__":
    sys.exit(main())

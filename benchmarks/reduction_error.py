"""How far sums over ranks are from the exact ones: fastcomm and Gloo, in 32 and in 16 bits.

    python benchmarks/reduction_error.py [--json benchmarks/results/reduction-error.jsonl]
    python benchmarks/reduction_error.py --show benchmarks/results/reduction-error.jsonl

Every rank makes values like gradients: normal, at a magnitude between 2^-20 and 1 that is an
element's own and the same on all ranks. The sides sum these values in fp32, or rounded to bf16
or fp16 before the call; "wire" sides are given fp32, and fastcomm rounds. Errors are against the
exact sum of what a side was given (`sum_errors.Errors`), and once more, as "from fp32", against
that of the fp32 values: what a user of 16 bits loses in all.

Exit status 1 if the ranks of any side hold different results.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from sum_errors import errors, exact  # noqa: E402

import fastcomm  # noqa: E402
from fastcomm.bench.launch import launch  # noqa: E402
from fastcomm.bench.rank import Rank  # noqa: E402
from fastcomm.bench.records import RecordWriter, read_records  # noqa: E402

SMALLEST = -20  # exponent of the smallest magnitude
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Side:
    """Who sums (``all_reduce`` and ``fused`` are fastcomm's), in which type, over which wire."""

    how: str
    dtype: str
    wire: str | None = None

    @property
    def name(self) -> str:
        return f"{self.how}, {self.dtype}" + (f" over a {self.wire} wire" if self.wire else "")

    def sum(self, mine: torch.Tensor, gloo: dist.ProcessGroup) -> torch.Tensor:
        """The sum of the ranks' tensors, of which this rank's is ``mine``."""
        result = mine.clone()
        if self.how == "fused":
            wire = TYPES[self.wire] if self.wire else None
            fastcomm.fused_all_reduce_([result], average=False, comm_dtype=wire, norm_type=None)
        else:
            dist.all_reduce(result, group=gloo if self.how == "Gloo" else None)
        return result


SIDES = [
    *(Side(how, dtype) for how in ("all_reduce", "fused", "Gloo") for dtype in TYPES),
    *(Side("fused", "fp32", wire) for wire in ("bf16", "fp16")),
]


def values_of(rank: int, numel: int, dtype: str) -> torch.Tensor:
    """What a rank contributes."""
    exponents = torch.rand(numel, generator=torch.Generator().manual_seed(99)) * SMALLEST
    normal = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
    return (normal * torch.exp2(exponents)).to(TYPES[dtype])


def measure(rank: Rank, numel: int) -> list[tuple[str, dict[str, float]]]:
    """For each side a digest of this rank's result, and on rank 0 its errors."""
    dist.init_process_group("fastcomm")
    gloo = dist.new_group(backend="gloo")
    assert gloo is not None
    wanted = {}
    if rank.rank == 0:
        for dtype in TYPES:
            wanted[dtype] = exact([values_of(r, numel, dtype) for r in range(rank.size)])
    found = []
    for side in SIDES:
        result = side.sum(values_of(rank.rank, numel, side.dtype), gloo)
        sha = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest()
        own: dict[str, float] = {}
        if rank.rank == 0:
            rounded_to = TYPES[side.wire or side.dtype]
            own = asdict(errors(result, wanted[side.dtype], rounded_to))
            own["rms_from_fp32"] = errors(result, wanted["fp32"], rounded_to).rms
        found.append((sha, own))
    dist.destroy_process_group()
    return found


def rows_of(ranks: int, numel: int) -> list[dict[str, Any]]:
    """A row for each side."""
    told = launch(measure, ranks, numel, timeout_s=300)
    rows = []
    for side, of_ranks in zip(SIDES, zip(*told, strict=True), strict=True):
        row = {"benchmark": "reduction_error", "side": side.name, "ranks": ranks, "numel": numel}
        row |= {"same_bits_on_all_ranks": len({sha for sha, _ in of_ranks}) == 1}
        rows.append({**row, "sha256": of_ranks[0][0], **of_ranks[0][1]})
    return rows


MEASURES = {
    "rms": ("error, rms", "{:.2e}"),
    "max": ("error, largest", "{:.2e}"),
    "max_ulp": ("error, largest, in ulp of the sum", "{:.3g}"),
    "max_ulp_of_terms": ("error, largest, in ulp of the terms", "{:.2f}"),
    "rms_from_fp32": ("error from the sum of the fp32 values, rms", "{:.2e}"),
}


def format_table(rows: Sequence[dict[str, Any]], measure: str, style: str = "simple") -> str:
    """One measure: a line for each side, a column for each number of ranks."""
    from tabulate import tabulate

    title, form = MEASURES[measure]
    counts = sorted({row["ranks"] for row in rows})
    cells = {(row["side"], row["ranks"]): form.format(row[measure]) for row in rows}
    names = dict.fromkeys(row["side"] for row in rows)
    body = [[name, *(cells.get((name, ranks), "") for ranks in counts)] for name in names]
    headers = [f"{title}; ranks:", *map(str, counts)]
    align = ("left", *["right"] * len(counts))
    return str(tabulate(body, headers, tablefmt=style, colalign=align, disable_numparse=True))


def show(rows: Sequence[dict[str, Any]], style: str) -> int:
    """Print all tables; 1 if the ranks' results differ anywhere."""
    print("\n\n".join(format_table(rows, measure, style) for measure in MEASURES))
    differ = [f"{r['side']}, {r['ranks']} ranks" for r in rows if not r["same_bits_on_all_ranks"]]
    for name in differ:
        print(f"ranks hold different results: {name}", file=sys.stderr)
    return 1 if differ else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--numel", type=int, default=1 << 17, help="values of a rank (131072)")
    parser.add_argument("--json", type=Path, help="write rows here; the file must not exist")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only show a result file")
    parser.add_argument("--style", default="simple", help="table style: simple, github, ...")
    chosen = parser.parse_args(arguments)
    if chosen.show:
        return show(read_records(chosen.show).rows, chosen.style)
    writer = RecordWriter(chosen.json, sys.argv) if chosen.json else None
    rows = []
    for ranks in tqdm(chosen.ranks, desc="ranks", leave=False):
        for row in rows_of(ranks, chosen.numel):
            rows.append(row)
            if writer:
                writer.write(row)
    if writer:
        writer.close()
    return show(rows, chosen.style)


if __name__ == "__main__":
    sys.exit(main())

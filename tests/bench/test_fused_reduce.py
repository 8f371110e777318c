"""The benchmark of fused reductions: its sides do the same, docs/gradients.md has its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fused_reduce
import torch
from support.ranks import World, run_ranks

import fastcomm

ROOT = Path(__file__).resolve().parents[2]


def _both_sides(world: World) -> None:
    world.init()
    group = torch.distributed.new_group(backend="gloo")
    ours = [torch.randn(n, generator=torch.Generator().manual_seed(n + world.rank)) for n in (9, 4)]
    theirs = [grad.clone() for grad in ours]
    result = fastcomm.fused_all_reduce_(ours, scale=fused_reduce.UNSCALE)
    norm = fused_reduce.stock(theirs, group)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(result.total_norm, norm)


def test_both_sides_do_the_same() -> None:
    run_ranks(2, _both_sides)


def test_a_short_run(tmp_path: Path) -> None:
    arguments = ["--repeats", "1", "--lists", "ResNet-50", "--json", str(tmp_path / "r.jsonl")]
    assert fused_reduce.main(arguments) == 0
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert rows[1]["bytes"] == 102_228_128 and rows[1]["times_faster_than_stock"] > 0


def test_the_page_says_what_was_measured() -> None:
    lines = (ROOT / "benchmarks/results/fused-reduce.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines[1:]) if row["ranks"] == 2]
    faster = [row["times_faster_than_stock"] for row in rows]
    bare = [row["times_the_bare_all_reduce"] for row in rows]
    text = re.sub(r"\s+", " ", (ROOT / "docs/gradients.md").read_text())
    assert f"{min(faster):.1f} to {max(faster):.1f} times faster than those steps" in text
    assert f"{min(bare):.2f} to {max(bare):.2f} times the bare `all_reduce`" in text
    there = [row["shared_times_the_bare_all_reduce_shared"] for row in rows]
    assert f"{min(there):.2f} to {max(there):.2f} times the bare `all_reduce` there" in text
    slots = [row["median_ms"]["fused_shared"] / row["median_ms"]["bare"] for row in rows]
    assert f"and {min(slots):.2f} to {max(slots):.2f} times the one that goes through" in text
    wire = [row["median_ms"]["fused_bf16"] / row["median_ms"]["fused"] for row in rows]
    assert f"bf16 on the wire {min(wire):.2f} to {max(wire):.2f} times the time of fp32" in text

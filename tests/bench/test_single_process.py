"""The benchmark of the primitives: its sides do the same; docs/data-parallel.md has its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import single_process
import torch
from model_shapes import resnet50, transformer

from fastcomm import comm

ROOT = Path(__file__).resolve().parents[2]


def test_both_sides_do_the_same() -> None:
    tensors = [torch.randn(5), torch.arange(3), torch.randn(2, 2), torch.randn(3 << 20)]
    ours = comm.broadcast_coalesced(tensors, ["cpu"] * 3)
    for theirs, own in zip(single_process.plain_broadcast(tensors, 3), ours, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(theirs, own, strict=True))
    lists = [[t.float() + i for t in tensors] for i in range(2)]
    sums = single_process.plain_reduce(lists)
    assert all(torch.equal(a, b) for a, b in zip(sums, comm.reduce_add_coalesced(lists)))  # noqa: B905
    model, x = torch.nn.Linear(4, 2), torch.randn(6, 4)
    torch.testing.assert_close(single_process.plain_step(model, x, 2), model(x))


def test_the_shapes_are_those_of_the_models() -> None:
    def count(shapes: list[list[int]]) -> int:
        return sum(torch.Size(shape).numel() for shape in shapes)

    assert count(resnet50()) == 25_557_032  # as torchvision has it
    reference = torch.nn.TransformerEncoderLayer(768, 12, 3072, device="meta")
    assert count(transformer()) == 12 * sum(p.numel() for p in reference.parameters())


def test_a_short_run(tmp_path: Path) -> None:
    arguments = ["--repeats", "1", "--replicas", "2", "--json", str(tmp_path / "r.jsonl")]
    chosen = ["--lists", "3000 x 3500", "--models", "60 small layers"]
    assert single_process.main([*arguments, *chosen]) == 0
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    lists = ["broadcast_coalesced", "reduce_add_coalesced"]
    measured = ["scatter", "gather", *lists, "DataParallel step"]
    assert [row.get("operation") for row in rows] == [None, *measured]
    assert rows[1]["times_faster"] > 0 and rows[-1]["overhead_ms"].keys() == {"torch", "fastcomm"}


def test_the_page_says_what_was_measured() -> None:
    lines = (ROOT / "benchmarks/results/single-process.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:]]
    faster = [row["times_faster"] for row in rows if "times_faster" in row]
    overhead = [row["overhead_ratio"] for row in rows if "overhead_ratio" in row]
    text = re.sub(r"\s+", " ", (ROOT / "docs/data-parallel.md").read_text())
    assert f"copied and summed {min(faster):.1f} to {max(faster):.1f} times faster" in text
    assert f"adds at most {max(overhead):.2f} of what those steps add" in text

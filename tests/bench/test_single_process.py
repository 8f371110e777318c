"""The benchmark of the primitives: both sides do the same, and the README has its figures."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fastcomm import comm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "single_process", ROOT / "benchmarks/single_process.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_both_sides_do_the_same(script: ModuleType) -> None:
    tensors = [torch.randn(5), torch.arange(3), torch.randn(2, 2), torch.randn(3 << 20)]
    ours = comm.broadcast_coalesced(tensors, ["cpu"] * 3)
    for theirs, own in zip(script.plain_broadcast(tensors, 3), ours, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(theirs, own, strict=True))
    lists = [[t.float() + i for t in tensors] for i in range(2)]
    sums = script.plain_reduce(lists)
    assert all(torch.equal(a, b) for a, b in zip(sums, comm.reduce_add_coalesced(lists)))  # noqa: B905
    model, x = torch.nn.Linear(4, 2), torch.randn(6, 4)
    torch.testing.assert_close(script.plain_step(model, x, 2), model(x))


def test_the_shapes_are_those_of_the_models(script: ModuleType) -> None:
    def count(shapes: list[list[int]]) -> int:
        return sum(torch.Size(shape).numel() for shape in shapes)

    assert count(script.resnet50()) == 25_557_032  # as torchvision has it
    reference = torch.nn.TransformerEncoderLayer(768, 12, 3072, device="meta")
    assert count(script.transformer()) == 12 * sum(p.numel() for p in reference.parameters())


def test_a_short_run(script: ModuleType, tmp_path: Path) -> None:
    arguments = ["--repeats", "1", "--replicas", "2", "--json", str(tmp_path / "r.jsonl")]
    chosen = ["--lists", "3000 x 3500", "--models", "60 small layers"]
    assert script.main([*arguments, *chosen]) == 0
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [row["type"] for row in rows] == ["environment", "row", "row", "row"]
    assert rows[1]["times_faster"] > 0 and rows[3]["overhead_ms"].keys() == {"torch", "fastcomm"}


def test_the_readme_says_what_was_measured() -> None:
    lines = (ROOT / "benchmarks/results/single-process.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:]]
    faster = [row["times_faster"] for row in rows if "times_faster" in row]
    overhead = [row["overhead_ratio"] for row in rows if "overhead_ratio" in row]
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    assert f"copied and summed {min(faster):.1f} to {max(faster):.1f} times faster" in text
    assert f"adds at most {max(overhead):.2f} of what those steps add" in text

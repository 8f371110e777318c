"""The benchmark of fused reductions on a GPU: its sides do the same, and its rows are complete.

It is tried on the CPU here; what it measures needs a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import fused_reduce_cuda
import pytest
import torch
from support import gpu


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_both_sides_do_the_same(replicas: int) -> None:
    lists = [[torch.randn(n) for n in (9, 5000, 1)] for _ in range(replicas)]
    grads, norm = fused_reduce_cuda.stock(lists)
    sums, total = fused_reduce_cuda.ours(lists)
    torch.testing.assert_close(list(sums), grads)
    torch.testing.assert_close(total, norm)


@pytest.mark.skipif(gpu.WHY_NONE is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert fused_reduce_cuda.main([]) == 1
    assert "no GPU" in capsys.readouterr().err


def test_a_short_run_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    chosen = ["--device", "cpu", "--replicas", "2", "--repeats", "1", "--lists", "ResNet-50"]
    assert fused_reduce_cuda.main([*chosen, "--json", str(path)]) == 0
    environment, row = map(json.loads, path.read_text().splitlines())
    assert environment["type"] == "environment"
    sides = {"fused", "fused_bf16", "norm", "stock", "copy"}
    assert all(row[column].keys() == sides for column in ("median_ms", "host_ms", "spread"))
    assert row["share_of_copy"]["copy"] == 1 and row["launches"].keys() == sides
    assert row["moved_bytes"]["fused"] == 3 * row["bytes"] == 3 * 4 * 25_557_032
    assert "% of a copy" in capsys.readouterr().out

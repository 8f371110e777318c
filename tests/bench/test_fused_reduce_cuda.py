"""The benchmark of fused reductions on a GPU: its sides do the same, and it needs a GPU to run."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from support import gpu, script


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script.load("fused_reduce_cuda")


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_both_sides_do_the_same(bench: ModuleType, replicas: int) -> None:
    lists = [[torch.randn(n) for n in (9, 5000, 1)] for _ in range(replicas)]
    grads, norm = bench.stock(lists)
    sums, total = bench.ours(lists)
    torch.testing.assert_close(list(sums), grads)
    torch.testing.assert_close(total, norm)


@pytest.mark.skipif(gpu.WHY_NONE is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 1
    assert "no GPU" in capsys.readouterr().err

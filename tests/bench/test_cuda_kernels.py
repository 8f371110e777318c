"""The benchmark of the batched CUDA kernels compiles and links; it needs a GPU to run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import nvcc

SOURCES = [
    "benchmarks/cpp/cuda_kernels.cu",
    *(f"csrc/kernels/cuda/{name}.cu" for name in ("multi_copy", "multi_reduce")),
    "csrc/core/error.cpp",
]


@pytest.mark.slow
@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
def test_it_compiles(tmp_path: Path) -> None:
    nvcc.link_for_device(tmp_path / "program", SOURCES, "-DFC_FEW_KERNELS")

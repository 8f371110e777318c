"""What is to run on a GPU compiles and links for one, without one; what needs no device runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import nvcc, programs

pytestmark = pytest.mark.nvcc

# Programs that run under the shim elsewhere, and their case that refuses wrong arguments.
REFUSING = ["multi_copy", "multi_reduce", "multi_combine", "multi_gradient"]
OTHERS = ["device_set", "local_collectives", "local_calls"]


@pytest.mark.parametrize("name", [*REFUSING, *OTHERS])
def test_programs(tmp_path: Path, name: str) -> None:
    program = nvcc.link_for_device(tmp_path / name, f"tests/cpp/shim_{name}_test.cpp")
    if name in REFUSING:
        programs.check(program, "refused")


def test_the_benchmark_of_the_kernels(tmp_path: Path) -> None:
    nvcc.link_for_device(tmp_path / "program", "benchmarks/cpp/cuda_kernels.cu")

"""What nvcc makes of the batched CUDA kernels: wide accesses, no scopes, no local memory.

Skipped without nvcc; none of it needs a GPU.
"""

from __future__ import annotations

import re

import pytest
from support import nvcc

NAMES = ["multi_copy", "multi_reduce", "multi_combine", "multi_gradient", "gradient_norm"]
SOURCES = [f"csrc/kernels/cuda/{name}.cu" for name in NAMES]
MOVING, NORMS = SOURCES[:4], SOURCES[3:]
pytestmark = pytest.mark.nvcc


@pytest.fixture(params=SOURCES)
def ptx(request: pytest.FixtureRequest) -> str:
    return nvcc.ptx_of(request.param)


def test_nothing_is_ordered_or_atomic(ptx: str) -> None:
    """The order of the stream is all these kernels rely on."""
    assert nvcc.ordered_accesses(ptx) == set()


@pytest.mark.parametrize("source", MOVING)
def test_data_moves_in_packs_of_16_bytes(source: str) -> None:
    assert nvcc.accesses_of_16_bytes(nvcc.ptx_of(source)) == {"ld", "st"}


def test_norms_of_blocks_are_read_by_one_access() -> None:
    assert nvcc.accesses_of_16_bytes(nvcc.ptx_of(NORMS[-1])) == {"ld"}


def test_data_is_not_read_through_the_read_only_path(ptx: str) -> None:
    assert "ld.global.nc" not in ptx, "a destination may be a source, and peers write"


def test_tables_stay_in_parameter_space(ptx: str) -> None:
    assert "ld.param" in ptx
    assert ".local" not in ptx


def test_arithmetic_is_rounded_as_written(ptx: str) -> None:
    assert not re.search(r"\bdiv\.(?:approx|full)|\.ftz", ptx)
    assert not re.search(r"\b(?:fma|mad)\.[\w.]*f(?:16|32|64)", ptx)


def test_norms_are_in_fp64_and_rounded_as_written() -> None:
    ptx = "".join(map(nvcc.ptx_of, NORMS))
    assert {"add.rn.f64", "mul.rn.f64", "sqrt.rn.f64"} <= set(re.findall(r"\b\w+\.rn\.f64", ptx))
    assert not re.search(r"\b(?:add|sub|mul|sqrt)\.f64", ptx), "a contraction would be allowed"


@pytest.mark.parametrize("source", SOURCES)
def test_kernels_use_no_local_memory(source: str) -> None:
    frames = nvcc.frames(source)
    assert frames
    assert set(frames) == {(0, 0)}, frames

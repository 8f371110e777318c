"""PTX that nvcc makes of the CUDA kernels: wide accesses, the scope of flags, no local memory.

A flag of device scope is wrong between two GPUs. No test on one GPU can show it, but the PTX does.
"""

from __future__ import annotations

import re

import pytest
from support import nvcc

NAMES = ["multi_copy", "multi_reduce", "multi_combine", "multi_gradient", "gradient_norm"]
BATCHED = [f"csrc/kernels/cuda/{name}.cu" for name in NAMES]
MOVING, NORMS = BATCHED[:4], BATCHED[3:]
GRADIENTS, NORMS_OF_BLOCKS = NORMS
# Kernels that wait for other ranks.
WAITING = [
    f"csrc/engines/cuda/{name}.cu" for name in ("short", "short_combine", "meeting", "pairs")
]
SHORT = WAITING[0]
PROBE = "csrc/devices/peer_probe.cu"
INDIRECT = "csrc/kernels/cuda/indirect_reduce.cu"  # whose addresses an earlier kernel has found
pytestmark = pytest.mark.nvcc
batched = pytest.mark.parametrize("source", BATCHED)


@batched
def test_what_is_read_is_of_the_newest_build(source: str) -> None:
    """An earlier build for other architectures would leave more files."""
    kept = nvcc.library().parent / f"{source}.o.kept"
    assert len(list(kept.glob("*.ptx"))) == len(nvcc.architectures().split(";"))


@batched
def test_nothing_is_ordered_or_atomic(source: str) -> None:
    """These kernels rely on the order of the stream alone."""
    assert nvcc.ordered_accesses(nvcc.ptx_of(source)) == set()


@pytest.mark.parametrize("source", WAITING)
def test_flags_have_system_scope(source: str) -> None:
    assert nvcc.ordered_accesses(nvcc.ptx_of(source)) == {
        "ld.acquire.sys.global.u32",
        "st.release.sys.global.u32",
        "ld.relaxed.sys.global.u32",  # polls; and words for abort and failure, which order no data
        "atom.acq_rel.gpu.global.exch.b32",  # a channel's guard, between streams of one device
    }


@pytest.mark.parametrize("source", [*WAITING, PROBE])
def test_polls_are_relaxed_and_back_off(source: str) -> None:
    """An acquire drops a multiprocessor's first-level cache, under whatever else computes there."""
    ptx = nvcc.ptx_of(source)
    polling = [loop for loop in nvcc.innermost_loops(ptx) if "%globaltimer" in loop]
    assert len(polling) == ptx.count("%globaltimer") > 0, "a wait looks at the clock in its loop"
    for loop in polling:
        assert nvcc.ordered_accesses(loop) == {"ld.relaxed.sys.global.u32"}, loop
        assert "nanosleep" in loop, loop


@pytest.mark.parametrize("source", [*MOVING, SHORT])
def test_data_moves_in_packs_of_16_bytes(source: str) -> None:
    assert nvcc.accesses_of_16_bytes(nvcc.ptx_of(source)) == {"ld", "st"}


@pytest.mark.parametrize("source", [*BATCHED, INDIRECT, *WAITING])
def test_memory_is_addressed_as_global(source: str) -> None:
    """The compiler cannot see it of an address out of a table, unless it is told."""
    assert nvcc.generic_accesses(nvcc.ptx_of(source)) == set()


def test_norms_of_blocks_are_read_by_one_access() -> None:
    assert nvcc.accesses_of_16_bytes(nvcc.ptx_of(NORMS_OF_BLOCKS)) == {"ld"}


@pytest.mark.parametrize("source", [*BATCHED, *WAITING])
def test_data_is_not_read_through_the_read_only_path(source: str) -> None:
    ptx = nvcc.ptx_of(source)
    assert "ld.global.nc" not in ptx, "a destination may be a source, and peers write"


@batched
def test_tables_stay_in_parameter_space(source: str) -> None:
    ptx = nvcc.ptx_of(source)
    assert "ld.param" in ptx
    assert ".local" not in ptx


@batched
def test_arithmetic_is_rounded_as_written(source: str) -> None:
    ptx = nvcc.ptx_of(source)
    assert not re.search(r"\bdiv\.(?:approx|full)|\.ftz", ptx)
    fused = set(re.findall(r"\b(?:fma|mad)\.[\w.]*f(?:16|32|64)", ptx))
    # The square of an fp32, which is exact in fp64, may be added in one step.
    assert fused <= ({"fma.rn.f64"} if source == GRADIENTS else set())


def test_no_product_is_contracted_into_a_sum() -> None:
    # A correctly rounded division by a constant is fused too, so "fma" alone would show nothing.
    assert re.search(r"\badd\.rn\.f32\b", nvcc.ptx_of(SHORT))
    assert not re.search(r"\bdiv\.(?:approx|full)", nvcc.ptx_of(SHORT))


def test_norms_are_in_fp64_and_rounded_as_written() -> None:
    ptx = "".join(map(nvcc.ptx_of, NORMS))
    assert {"add.rn.f64", "mul.rn.f64", "sqrt.rn.f64"} <= set(re.findall(r"\b\w+\.rn\.f64", ptx))
    assert not re.search(r"\b(?:add|sub|mul|sqrt)\.f64", ptx), "a contraction would be allowed"


@pytest.mark.parametrize(
    ("sources", "least"),
    [*(([source], 1) for source in BATCHED), (WAITING[:2], 24), (WAITING[2:], 6)],
)
def test_kernels_use_no_local_memory(sources: list[str], least: int) -> None:
    """An array of the parameters that is indexed at run time would be copied there."""
    frames = [frame for source in sources for frame in nvcc.frames(source)]
    assert len(frames) >= least, frames
    assert set(frames) == {(0, 0)}, frames

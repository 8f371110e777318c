"""What nvcc makes of kernels that wait: the scope of flags, wide accesses, no local memory.

One GPU cannot show that a flag of device scope is wrong between two, and no GPU is needed to read
it. Skipped without nvcc.
"""

from __future__ import annotations

import re

import pytest
from support import nvcc

SOURCE = "csrc/engines/cuda/short.cu"
COMBINATIONS = "csrc/engines/cuda/short_combine.cu"
MEETING = "csrc/engines/cuda/meeting.cu"
PAIRS = "csrc/engines/cuda/pairs.cu"
pytestmark = pytest.mark.nvcc


@pytest.fixture
def ptx() -> str:
    return nvcc.ptx_of(SOURCE)


@pytest.mark.parametrize("source", [SOURCE, COMBINATIONS, MEETING, PAIRS])
def test_flags_have_system_scope(source: str) -> None:
    assert nvcc.ordered_accesses(nvcc.ptx_of(source)) == {
        "ld.acquire.sys.global.u32",
        "st.release.sys.global.u32",
        "ld.relaxed.sys.global.u32",  # that somebody has given up, which orders nothing
    }


def test_data_moves_in_packs_of_16_bytes(ptx: str) -> None:
    assert nvcc.accesses_of_16_bytes(ptx) == {"ld", "st"}


@pytest.mark.parametrize("source", [SOURCE, COMBINATIONS, MEETING, PAIRS])
def test_data_is_not_read_through_the_read_only_path(source: str) -> None:
    assert "ld.global.nc" not in nvcc.ptx_of(source), (
        "a destination may be a source, and peers write"
    )


def test_no_product_is_contracted_into_a_sum(ptx: str) -> None:
    # A division by a constant consists of fused operations, correctly rounded; sums do not.
    assert re.search(r"\badd\.rn\.f32\b", ptx)
    assert not re.search(r"\bdiv\.(?:approx|full)", ptx)


def test_kernels_use_no_local_memory() -> None:
    """An array indexed at run time, copied from the parameters, would lie there."""
    frames = [*nvcc.frames(SOURCE), *nvcc.frames(COMBINATIONS)]
    assert len(frames) >= 24, frames
    assert set(frames) == {(0, 0)}, frames


def test_meetings_use_no_local_memory() -> None:
    frames = [*nvcc.frames(MEETING), *nvcc.frames(PAIRS)]
    assert len(frames) >= 6 and set(frames) == {(0, 0)}, frames

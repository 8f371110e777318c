"""The batched CUDA kernels without a GPU: their sources run on the host under the execution shim.

The C++ programs (tests/cpp/shim_multi_*_test.cpp) compare every byte and every norm with a plain
reference, and with the CPU's loops. Negative controls: ThreadSanitizer must report two blocks that
work on the same chunks, and a missing barrier. The comparison must report a kernel that works on
after a failure.
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, SHIM_BOUNDS, WATCHED

# "copy" runs under AddressSanitizer, which reports reads outside of a source.
BUILDS = {"copy": SHIM_BOUNDS, "reduce": SHIM, "combine": SHIM, "gradient": SHIM}
CASES = [
    *(("copy", case, "1") for case in ("alignments", "division", "exact", "grid", "refused")),
    *(("copy", "tables", seed) for seed in "123"),
    *(("reduce", "sums", seed) for seed in "123"),
    *(("reduce", case, "1") for case in ("negative_zeros", "lies", "conversions", "refused")),
    *(("reduce", "tables", seed) for seed in "12"),
    *(("combine", case, "1") for case in ("bits", "tables", "failed", "refused")),
    *(("gradient", case, seed) for case in ("sums", "norms", "special") for seed in "123"),
    # Up to 65,537 tensors, and a tensor of 2,051 blocks: more than a tile of gradient_norm.cu.
    *(("gradient", case, "1") for case in ("joins", "long", "tables", "refused")),
]
# Files and functions of which ThreadSanitizer's reports of a control must each name one.
KERNELS = ("csrc/kernels/cuda/",)
RACES = {
    ("copy", "race", "share_chunks"): ("fastcomm::copy_",),
    ("reduce", "race", "share_chunks"): (*KERNELS, "SegmentWorker"),
    ("combine", "race", "share_chunks"): (*KERNELS, "SegmentWorker", "combine_raw"),
    **{
        ("gradient", "race", control): ("csrc/kernels/", "operator()", "NormColumns")
        for control in ("no_barrier", "no_lane_barrier", "share_chunks")
    },
    **{
        ("gradient", "race_alone", control): ("csrc/kernels/", "Norm", "note_chunk")
        for control in ("no_lane_barrier", "share_chunks")
    },
}


def _program(name: str) -> str:
    return f"shim_multi_{name}_test"


@pytest.mark.parametrize(("name", "case", "seed"), CASES)
def test_every_byte(name: str, case: str, seed: str) -> None:
    programs.check(programs.get(_program(name), BUILDS[name]), case, seed)


@pytest.mark.parametrize(("name", "seed"), [("reduce", "4"), ("combine", "2"), ("gradient", "4")])
def test_within_bounds(name: str, seed: str) -> None:
    programs.check(programs.get(_program(name), SHIM_BOUNDS), "all", seed)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize(
    ("name", "case"), [*((name, "race") for name in BUILDS), ("gradient", "race_alone")]
)
def test_no_data_race(name: str, case: str, seed: str) -> None:
    programs.check(programs.get(_program(name), WATCHED), case, seed)


@pytest.mark.parametrize(("name", "case", "control"), RACES)
def test_a_race_is_reported(name: str, case: str, control: str) -> None:
    result = programs.run(programs.get(_program(name), WATCHED), case, "1", control=control)
    reported = programs.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    places = RACES[name, case, control]
    assert all(any(place in line for place in places) for line in reported), reported


def test_work_behind_a_failure_is_reported() -> None:
    program = programs.get(_program("combine"), SHIM)
    result = programs.run(program, "failed", control="work_on")
    assert result.returncode != 0 and "max of float32" in result.stdout, result.stdout


@pytest.mark.release
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("reduce", "sums"),
        ("combine", "bits"),
        *(("gradient", each) for each in ("sums", "special", "tables")),
    ],
)
def test_bits_with_more_values(name: str, case: str, seed: int) -> None:
    programs.check(programs.get(_program(name), SHIM), case, str(seed))

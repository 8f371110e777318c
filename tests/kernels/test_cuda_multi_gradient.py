"""The reduction of gradients with norms, without a GPU: its source runs under the execution shim.

Every byte and every norm is compared inside tests/cpp/shim_multi_gradient_test.cpp with a plain
reference and with the loops of the CPU. Builds in which a barrier is missing, or two blocks work on
the same chunks, must be reported by ThreadSanitizer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import nvcc, shim

KERNELS = "csrc/kernels/cuda/multi_gradient.cu"
TEST = "tests/cpp/shim_multi_gradient_test.cpp"
ERROR = "csrc/core/error.cpp"
CPU_LOOPS = (
    "csrc/core/env.cpp",
    "csrc/coll/fused_local.cpp",
    "csrc/coll/gradient_list.cpp",
    "csrc/kernels/isa.cpp",
    "csrc/kernels/gradient_cpu.cpp",
    "csrc/kernels/gradient_generic.cpp",
    "csrc/kernels/reduce_cpu.cpp",
    "csrc/kernels/reduce_generic.cpp",
)
SOURCES = (KERNELS, TEST, ERROR, *CPU_LOOPS)
FEW = "-DFC_FEW_KERNELS"
WATCHED = [*shim.TSAN, FEW]


def build(folder: Path, flags: list[str]) -> Path:
    return shim.link(folder / "program", shim.compile_all(folder, SOURCES, flags), flags)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kernel, without a sanitizer."""
    return build(tmp_path_factory.mktemp("shim") / "plain", ["-O1"])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few kernels, under ThreadSanitizer."""
    return build(tmp_path_factory.mktemp("shim") / "tsan", WATCHED)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", ["sums", "norms", "special"])
def test_bits_are_those_of_the_reference_and_of_the_cpu(
    program: Path, case: str, seed: int
) -> None:
    """1 to 16 sources, every type and wire, misaligned, in place, with NaNs and infinities."""
    result = shim.run(program, case, str(seed))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("case", ["tables", "refused"])
def test_lists_of_every_length_and_what_is_refused(program: Path, case: str) -> None:
    result = shim.run(program, case)
    assert result.returncode == 0, result.stdout


def test_within_bounds(tmp_path: Path) -> None:
    flags = [*shim.ASAN, FEW]
    result = shim.run(build(tmp_path / "asan", flags), "all", "4")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_data_race(watched: Path, seed: int) -> None:
    result = shim.run(watched, "race", str(seed))
    assert result.returncode == 0, result.stdout
    assert "ThreadSanitizer" not in result.stdout


@pytest.mark.parametrize("control", ["FC_NO_BARRIER", "FC_NO_LANE_BARRIER", "FC_SHARE_CHUNKS"])
def test_broken_kernels_are_reported(watched: Path, tmp_path: Path, control: str) -> None:
    objects = shim.compile_all(tmp_path / "control", [KERNELS], [*WATCHED, f"-D{control}"])
    objects += [watched.parent / f"{Path(source).name}.o" for source in SOURCES[1:]]
    result = shim.run(shim.link(tmp_path / "program", objects, WATCHED), "race", "1")
    reported = shim.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    assert all("csrc/kernels/" in line or "operator()" in line for line in reported), reported


@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
@pytest.mark.parametrize(
    "flags", [pytest.param([FEW], id="few"), pytest.param([], id="all", marks=pytest.mark.slow)]
)
def test_the_test_compiles_for_a_device(tmp_path: Path, flags: list[str]) -> None:
    """The same source is to run on a GPU."""
    program = nvcc.link_for_device(tmp_path / "program", (KERNELS, TEST, ERROR), *flags)
    assert shim.run(program, "refused").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_bits_with_more_values(program: Path, seed: int) -> None:
    for case in ("sums", "special", "tables"):
        result = shim.run(program, case, str(seed))
        assert result.returncode == 0, result.stdout

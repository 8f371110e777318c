"""The batched CUDA reduction without a GPU: its source runs on the host under the execution shim.

Results are compared to the bit inside the C++ program (tests/cpp/shim_multi_reduce_test.cpp). A
build in which two blocks work on the same chunks must be reported by ThreadSanitizer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import nvcc, shim

KERNELS = "csrc/kernels/cuda/multi_reduce.cu"
SOURCES = (KERNELS, "tests/cpp/shim_multi_reduce_test.cpp", "csrc/core/error.cpp")
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
def test_bits_of_every_dtype_and_number_of_sources(program: Path, seed: int) -> None:
    """1 to 16 sources and destinations, mixed types, divided and scaled, misaligned, in place."""
    result = shim.run(program, "sums", str(seed))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("case", ["negative_zeros", "conversions", "refused"])
def test_corners(program: Path, case: str) -> None:
    result = shim.run(program, case)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_tables_of_every_size(program: Path, seed: int) -> None:
    """0 to 3000 tensors, empty ones among them, around the capacities of a launch."""
    result = shim.run(program, "tables", str(seed))
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


def test_shared_chunks_are_reported(watched: Path, tmp_path: Path) -> None:
    objects = shim.compile_all(tmp_path / "control", [KERNELS], [*WATCHED, "-DFC_SHARE_CHUNKS"])
    objects += [watched.parent / f"{Path(source).name}.o" for source in SOURCES[1:]]
    result = shim.run(shim.link(tmp_path / "program", objects, WATCHED), "race", "1")
    reported = shim.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    assert all(KERNELS in line for line in reported), reported


@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
@pytest.mark.parametrize(
    "flags", [pytest.param([FEW], id="few"), pytest.param([], id="all", marks=pytest.mark.slow)]
)
def test_the_test_compiles_for_a_device(tmp_path: Path, flags: list[str]) -> None:
    """The same source is to run on a GPU."""
    program = nvcc.link_for_device(tmp_path / "program", SOURCES, *flags)
    assert shim.run(program, "refused").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_bits_with_more_values(program: Path, seed: int) -> None:
    result = shim.run(program, "sums", str(seed))
    assert result.returncode == 0, result.stdout

"""The CUDA all_reduce without a GPU: its source runs on the host under the execution shim.

Results are compared to the bit inside the C++ program (tests/cpp/shim_all_reduce_test.cpp). Here
it is built, run, and run again under ThreadSanitizer; builds with one flag weakened or one barrier
removed must be reported, else the sanitizer's silence would mean nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import nvcc, shim

KERNELS = "csrc/coll/cuda/all_reduce.cu"
SOURCES = (KERNELS, "tests/cpp/shim_all_reduce_test.cpp", "csrc/core/error.cpp")
# Files, and functions: some versions of the sanitizer do not find every file.
MOVES_DATA = ("copy_block.h", "reduce_pack.h", "CudaExecutor", "::copy_", "::pack_between")
WATCHED = [*shim.TSAN, "-DFC_FEW_KERNELS"]


def build(folder: Path, flags: list[str]) -> Path:
    return shim.link(folder / "program", shim.compile_all(folder, SOURCES, flags), flags)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kernel, without a sanitizer."""
    return build(tmp_path_factory.mktemp("shim") / "plain", ["-O1"])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few kernels, under ThreadSanitizer. The objects beside it serve the negative controls."""
    return build(tmp_path_factory.mktemp("shim") / "tsan", WATCHED)


@pytest.mark.parametrize("case", ["shim", "failures"])
def test_shim_and_failed_waits(program: Path, case: str) -> None:
    result = shim.run(program, case)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bits_of_every_dtype_and_size(program: Path, seed: int) -> None:
    """2 to 9, 12 and 16 ranks, SUM and AVG, odd sizes, misaligned, in place, flags that wrap."""
    result = shim.run(program, "sums", str(seed))
    assert result.returncode == 0, result.stdout
    assert "16 ranks" in result.stdout


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_no_data_race(watched: Path, seed: int) -> None:
    result = shim.run(watched, "race", str(seed))
    assert result.returncode == 0, result.stdout
    assert "ThreadSanitizer" not in result.stdout


@pytest.mark.parametrize("control", ["FC_WEAKEN_PUBLISH", "FC_WEAKEN_WAIT", "FC_NO_BARRIER"])
def test_negative_control_is_reported(watched: Path, tmp_path: Path, control: str) -> None:
    # Flags and barriers are used in the kernels' source alone.
    objects = shim.compile_all(tmp_path / control, [KERNELS], [*WATCHED, f"-D{control}"])
    objects += [watched.parent / f"{Path(source).name}.o" for source in SOURCES[1:]]
    result = shim.run(shim.link(tmp_path / "program", objects, WATCHED), "race", "1")
    reported = shim.races(result.stdout)
    assert reported, f"ThreadSanitizer missed {control}:\n{result.stdout}"
    # In what moves data, not somewhere in the test or the shim.
    assert all(any(place in line for place in MOVES_DATA) for line in reported), reported


@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
@pytest.mark.slow
def test_the_test_compiles_for_a_device(tmp_path: Path) -> None:
    """The same source is to run on a GPU that all ranks share."""
    nvcc.link_for_device(tmp_path / "program", SOURCES, "-DFC_FEW_KERNELS")


@pytest.mark.slow
def test_no_data_race_in_any_kernel(tmp_path: Path) -> None:
    result = shim.run(build(tmp_path / "all", shim.TSAN), "sums", "1", timeout=280)
    assert result.returncode == 0, result.stdout
    assert "ThreadSanitizer" not in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_bits_with_more_interleavings(program: Path, seed: int) -> None:
    result = shim.run(program, "sums", str(seed))
    assert result.returncode == 0, result.stdout

"""The batched CUDA copy without a GPU: its source runs on the host under the execution shim.

Every byte is compared inside the C++ program (tests/cpp/shim_multi_copy_test.cpp). A build in which
two blocks work on the same chunks must be reported by ThreadSanitizer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import nvcc, shim

KERNELS = "csrc/kernels/cuda/multi_copy.cu"
SOURCES = (KERNELS, "tests/cpp/shim_multi_copy_test.cpp", "csrc/core/error.cpp")


def build(folder: Path, flags: list[str]) -> Path:
    return shim.link(folder / "program", shim.compile_all(folder, SOURCES, flags), flags)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer: no byte outside a source is read."""
    return build(tmp_path_factory.mktemp("shim") / "asan", shim.ASAN)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim") / "tsan", shim.TSAN)


@pytest.mark.parametrize("case", ["alignments", "exact", "refused"])
def test_every_byte(program: Path, case: str) -> None:
    """Every pair of alignments, sizes around packs and chunks, guards around every destination."""
    result = shim.run(program, case)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tables_of_every_size(program: Path, seed: int) -> None:
    """0 to 3000 segments, empty ones among them, around the capacities of a launch."""
    result = shim.run(program, "tables", str(seed))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_data_race(watched: Path, seed: int) -> None:
    result = shim.run(watched, "race", str(seed))
    assert result.returncode == 0, result.stdout
    assert "ThreadSanitizer" not in result.stdout


def test_shared_chunks_are_reported(watched: Path, tmp_path: Path) -> None:
    flags = [*shim.TSAN, "-DFC_SHARE_CHUNKS"]
    objects = shim.compile_all(tmp_path / "control", [KERNELS], flags)
    objects += [watched.parent / f"{Path(source).name}.o" for source in SOURCES[1:]]
    result = shim.run(shim.link(tmp_path / "program", objects, shim.TSAN), "race", "1")
    reported = shim.races(result.stdout)
    assert reported, f"ThreadSanitizer missed the control:\n{result.stdout}"
    assert all("fastcomm::copy_" in line for line in reported), reported


@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
def test_the_test_compiles_for_a_device(tmp_path: Path) -> None:
    """The same source is to run on a GPU."""
    program = nvcc.link_for_device(tmp_path / "program", SOURCES)
    assert shim.run(program, "refused").returncode == 0

"""The collectives of one process over several devices, without a GPU: they run under the shim.

Every byte is compared inside the C++ program (tests/cpp/shim_local_collectives_test.cpp). Here it
is built, run, and run again under ThreadSanitizer; builds that leave out one kind of wait, or
believe in a broken link, must be reported.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import cpp_build, nvcc, shim

TEST = "tests/cpp/shim_local_collectives_test.cpp"
SOURCES = [*shim.LOCAL_SOURCES, TEST]
NAME = "shim_local_collectives_test"
PLAIN = ["-O1", "-DFC_SHIM"]
WATCHED = [*cpp_build.TSAN, "-DFC_SHIM", "-DFC_FEW_KERNELS"]
LINKS = ["direct", "staged", "mixed", "broken", "repeated"]


@pytest.mark.parametrize("case", ["warm", "threads", "refused"])
def test_calls(case: str) -> None:
    cpp_build.check(cpp_build.build(NAME, SOURCES, PLAIN), case)


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_bytes_of_every_operation(case: str, seed: str) -> None:
    """1 to 16 ranks, every dtype, lists of odd sizes and alignments, in place or not."""
    cpp_build.check(cpp_build.build(NAME, SOURCES, PLAIN), case, seed)


@pytest.mark.parametrize(("case", "seed"), [("race", "1"), ("race", "2"), ("threads", "1")])
def test_no_data_race(case: str, seed: str) -> None:
    output = cpp_build.check(cpp_build.build(NAME, SOURCES, WATCHED), case, seed)
    assert "ThreadSanitizer" not in output


@pytest.mark.parametrize("mark", ["kReady", "kStaged", "kWorked", "kFinished", "kDrained"])
def test_a_missing_wait_is_reported(mark: str) -> None:
    changed = "csrc/transport/local/device_group.cpp"
    program = control(changed, WATCHED, f"-DFC_DROP_WAIT={mark}")
    result = cpp_build.run(program, "race", environment=shim.FIRST_RACE)
    assert cpp_build.races(result.stdout), f"ThreadSanitizer missed {mark}:\n{result.stdout}"


def test_a_broken_link_is_reported_where_the_probe_is_blind() -> None:
    changed = "csrc/kernels/cuda/peer_probe.cu"
    result = cpp_build.run(control(changed, PLAIN, "-DFC_BLIND_PROBE"), "broken")
    assert result.returncode == 1 and "of 4 ranks" in result.stdout, result.stdout


def control(changed: str, flags: list[str], macro: str) -> cpp_build.Program:
    """Build the program again with one source changed by a macro."""
    whole = cpp_build.build(NAME, SOURCES, flags)
    others = [path for source, path in whole.objects.items() if source != changed]
    return cpp_build.build(f"{NAME}_control", [changed], [*flags, macro], others)


@pytest.mark.slow
@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("seed", range(100, 110))
def test_bytes_with_more_seeds(case: str, seed: int) -> None:
    cpp_build.check(cpp_build.build(NAME, SOURCES, PLAIN), case, str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("case", LINKS)
def test_no_data_race_on_any_link(case: str) -> None:
    program = cpp_build.build(NAME, SOURCES, [*cpp_build.TSAN, "-DFC_SHIM"])
    output = cpp_build.check(program, case, "7", timeout=280)
    assert "ThreadSanitizer" not in output


@pytest.mark.slow
@pytest.mark.parametrize("case", LINKS)
def test_in_bounds(case: str) -> None:
    program = cpp_build.build(NAME, SOURCES, [*cpp_build.ASAN, "-DFC_SHIM"])
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # the shim keeps what streams may still use
    cpp_build.check(program, case, "8", environment=environment, timeout=280)


@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
@pytest.mark.slow
def test_the_test_compiles_for_a_device(tmp_path: Path) -> None:
    """The same source is to run on a GPU, with ranks as its streams."""
    nvcc.link_for_device(tmp_path / "program", SOURCES, "-DFC_WITH_CUDA", "-DFC_FEW_KERNELS")

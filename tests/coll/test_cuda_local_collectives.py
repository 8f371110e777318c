"""The collectives of one process over several devices, without a GPU: they run under the shim.

Every byte is compared inside the C++ programs (tests/cpp/shim_local_collectives_test.cpp, and
shim_local_calls_test.cpp). Here they are built, run, and run again under ThreadSanitizer; builds
that leave out one kind of wait, or believe in a broken link, must be reported.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import cpp_build, nvcc, shim

BYTES = "shim_local_collectives_test"
CALLS = "shim_local_calls_test"
PLAIN = ["-O1", "-DFC_SHIM"]
WATCHED = [*cpp_build.TSAN, "-DFC_SHIM", "-DFC_FEW_KERNELS"]
LINKS = ["direct", "staged", "mixed", "broken", "repeated"]


def sources(name: str) -> list[str]:
    return [*shim.LOCAL_SOURCES, f"tests/cpp/{name}.cpp"]


def build(name: str, flags: list[str]) -> cpp_build.Program:
    return cpp_build.build(name, sources(name), flags)


@pytest.mark.parametrize("case", ["warm", "threads", "refused"])
def test_calls(case: str) -> None:
    cpp_build.check(build(CALLS, PLAIN), case)


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_bytes_of_every_operation(case: str, seed: str) -> None:
    """1 to 16 ranks, every dtype, lists of odd sizes and alignments, in place or not."""
    cpp_build.check(build(BYTES, PLAIN), case, seed)


@pytest.mark.parametrize(
    ("name", "case", "seed"),
    [(BYTES, "race", "1"), (BYTES, "race", "2"), (CALLS, "threads", "1")],
)
def test_no_data_race(name: str, case: str, seed: str) -> None:
    output = cpp_build.check(build(name, WATCHED), case, seed)
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
    whole = build(BYTES, flags)
    others = [path for source, path in whole.objects.items() if source != changed]
    return cpp_build.build(f"{BYTES}_control", [changed], [*flags, macro], others)


@pytest.mark.slow
@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("seed", range(100, 110))
def test_bytes_with_more_seeds(case: str, seed: int) -> None:
    cpp_build.check(build(BYTES, PLAIN), case, str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("case", LINKS)
def test_no_data_race_on_any_link(case: str) -> None:
    program = build(BYTES, [*cpp_build.TSAN, "-DFC_SHIM"])
    output = cpp_build.check(program, case, "7", timeout=280)
    assert "ThreadSanitizer" not in output


@pytest.mark.slow
@pytest.mark.parametrize("case", LINKS)
def test_in_bounds(case: str) -> None:
    program = build(BYTES, [*cpp_build.ASAN, "-DFC_SHIM"])
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # the shim keeps what streams may still use
    cpp_build.check(program, case, "8", environment=environment, timeout=280)


@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
@pytest.mark.slow
@pytest.mark.parametrize("name", [BYTES, CALLS])
def test_the_test_compiles_for_a_device(tmp_path: Path, name: str) -> None:
    """The same source is to run on a GPU, with ranks as its streams."""
    flags = ("-DFC_WITH_CUDA", "-DFC_FEW_KERNELS")
    nvcc.link_for_device(tmp_path / "program", sources(name), *flags)

"""Devices of one process without a GPU: streams, events, peer access and its probe, under the shim.

The C++ program checks by itself (tests/cpp/shim_device_group_test.cpp). Builds that leave out a
wait must be reported by ThreadSanitizer, and one whose probe is blind must trust a broken link:
else neither the sanitizer's silence nor the probe's word would mean anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import cpp_build, nvcc, shim

TEST = "tests/cpp/shim_device_group_test.cpp"
SOURCES = [*shim.LOCAL_SOURCES, TEST]
PLAIN = ["-O1", "-DFC_SHIM"]
WATCHED = [*cpp_build.TSAN, "-DFC_SHIM", "-DFC_FEW_KERNELS"]
CASES = ["streams", "strict", "verdicts", "meet", "staging", "guard", "errors", "fork"]


@pytest.mark.parametrize("case", CASES)
def test_devices(case: str) -> None:
    cpp_build.check(cpp_build.build("shim_device_group_test", SOURCES, PLAIN), case)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_no_data_race(seed: str) -> None:
    program = cpp_build.build("shim_device_group_test", SOURCES, WATCHED)
    assert "ThreadSanitizer" not in cpp_build.check(program, "all", seed)


@pytest.mark.parametrize("mark", ["kReady", "kFinished"])
def test_a_meeting_without_waits_is_reported(mark: str) -> None:
    changed = "csrc/transport/local/device_group.cpp"
    program = control(changed, WATCHED, f"-DFC_DROP_WAIT={mark}")
    result = cpp_build.run(program, "meet", environment=shim.FIRST_RACE)
    assert cpp_build.races(result.stdout), result.stdout


def test_a_blind_probe_is_reported() -> None:
    program = control("csrc/kernels/cuda/peer_probe.cu", PLAIN, "-DFC_BLIND_PROBE")
    result = cpp_build.run(program, "verdicts")
    assert result.returncode == 1
    assert "not a probe read wrong bits" in result.stdout
    assert "not wrote to the other device did not arrive" in result.stdout


def control(changed: str, flags: list[str], macro: str) -> cpp_build.Program:
    """Build the program again with one source changed by a macro."""
    whole = cpp_build.build("shim_device_group_test", SOURCES, flags)
    others = [path for source, path in whole.objects.items() if source != changed]
    return cpp_build.build("shim_device_group_test_control", [changed], [*flags, macro], others)


@pytest.mark.parametrize(("text", "allowed"), [("auto", True), ("off", True), ("maybe", False)])
def test_the_setting_is_read(text: str, allowed: bool) -> None:
    program = cpp_build.build("shim_device_group_test", SOURCES, PLAIN)
    result = cpp_build.run(program, "setting", environment={"FASTCOMM_PEER_ACCESS": text})
    if allowed:
        assert result.returncode == 0 and f"peer access: {text}" in result.stdout, result.stdout
    else:
        assert result.returncode == 1
        assert "FASTCOMM_PEER_ACCESS=maybe: may be one of auto, off" in result.stdout


@pytest.mark.skipif(nvcc.NVCC is None, reason="nvcc is missing")
@pytest.mark.slow
def test_the_test_compiles_for_a_device(tmp_path: Path) -> None:
    """The same source is to run on a GPU, with ranks as its streams."""
    nvcc.link_for_device(tmp_path / "program", SOURCES, "-DFC_WITH_CUDA", "-DFC_FEW_KERNELS")

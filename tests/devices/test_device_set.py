"""Devices of one process without a GPU: streams, events, peer access and its probe, under the shim.

The C++ program checks by itself (tests/cpp/shim_device_set_test.cpp). ThreadSanitizer must
report a run with a missing wait, and the program must report a run whose probe is blind
(csrc/core/control.h).
"""

from __future__ import annotations

import pytest
from support import programs
from support.programs import SHIM, WATCHED

TEST = "shim_device_set_test"
CASES = [
    "streams",
    "strict",
    "stale",
    "busy",
    "contexts",
    "captured",
    "verdicts",
    "meet",
    "staging",
    "guard",
    "errors",
    "fork",
]


@pytest.mark.parametrize("case", CASES)
def test_devices(case: str) -> None:
    programs.check(programs.get(TEST, SHIM), case)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_no_data_race(seed: str) -> None:
    programs.check(programs.get(TEST, WATCHED), "all", seed)


@pytest.mark.parametrize("control", ["drop_ready", "drop_finished"])
def test_a_meeting_without_waits_is_reported(control: str) -> None:
    watched = programs.get(TEST, WATCHED)
    result = programs.run(watched, "meet", control=control, environment=programs.FIRST_RACE)
    assert programs.races(result.stdout), result.stdout


def test_a_blind_probe_is_reported() -> None:
    result = programs.run(programs.get(TEST, SHIM), "verdicts", control="blind_probe")
    assert result.returncode == 1
    # The words after "not" are those that the reason lacks.
    assert "not a probe read wrong bits" in result.stdout
    assert "not wrote to the other device did not arrive" in result.stdout


@pytest.mark.parametrize(("text", "allowed"), [("auto", True), ("off", True), ("maybe", False)])
def test_the_setting_is_read(text: str, allowed: bool) -> None:
    asked = {"FASTCOMM_PEER_ACCESS": text}
    result = programs.run(programs.get(TEST, SHIM), "setting", environment=asked)
    if allowed:
        assert result.returncode == 0 and f"peer access: {text}" in result.stdout, result.stdout
    else:
        assert result.returncode == 1
        assert "FASTCOMM_PEER_ACCESS=maybe: may be one of auto, off" in result.stdout

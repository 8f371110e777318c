"""What ``fastcomm env`` says of CUDA devices."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.ranks import World, run_ranks

from fastcomm import _build_info, _native
from fastcomm._machine import env


def library(**seen: Any) -> SimpleNamespace:
    return SimpleNamespace(cuda_devices=lambda: {"reason": "", "names": [], "access": [], **seen})


def test_without_a_device_the_reason_stands_there() -> None:
    found = env.collect()["CUDA devices"]
    if torch.cuda.is_available():
        assert found["0"]
    elif _build_info.FLAVOUR == "cpu":
        assert found == "built without CUDA"
    else:
        assert found.startswith("no CUDA device")


def test_the_setting_is_shown() -> None:
    expected = os.environ.get("FASTCOMM_PEER_ACCESS", "auto")
    assert _native.load().environment()["FASTCOMM_PEER_ACCESS"] == expected


def test_a_word_that_a_setting_of_python_cannot_be_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FASTCOMM_TUNING", "no")
    env.warn_of_unknown_settings.cache_clear()
    with pytest.warns(RuntimeWarning, match="FASTCOMM_TUNING=no: may be one of auto, off; taken"):
        env.warn_of_unknown_settings()
    env.warn_of_unknown_settings.cache_clear()


def test_a_setting_that_nothing_reads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCOMM_TRANSPROT", "posix")
    monkeypatch.setenv("FASTCOMM_CUDA", "0")  # the build reads it
    monkeypatch.setenv("FASTCOMM_ISA", "auto")
    env.warn_of_unknown_settings.cache_clear()
    with pytest.warns(RuntimeWarning) as told:
        env.warn_of_unknown_settings()
    assert [str(warning.message) for warning in told] == [
        "FASTCOMM_TRANSPROT is set, and fastcomm has no such setting: did you mean "
        "FASTCOMM_TRANSPORT? 'fastcomm env' lists them"
    ]
    env.warn_of_unknown_settings()  # once per process: a warning fails here


def _create(world: World) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        world.init()
    return [str(warning.message) for warning in told if warning.category is RuntimeWarning]


def test_a_group_says_so_when_it_is_created() -> None:
    for told in run_ranks(2, _create, environment={"FASTCOMM_RUOTE": "fastest"}):
        assert any("FASTCOMM_RUOTE is set" in text for text in told), told


def test_devices_and_each_pair_of_them() -> None:
    same, direct = ("same device", "one memory"), ("direct", "confirmed")
    seen = library(names=["A", "B"], access=[[same, direct], [direct, same]])
    assert env._cuda_devices(seen) == {
        "0": "A",
        "1": "B",
        "0 to 1": "direct: confirmed",
        "1 to 0": "direct: confirmed",
    }
    assert env._cuda_devices(library(reason="no CUDA device")) == "no CUDA device"


def test_a_failing_device_is_told() -> None:
    def fail() -> None:
        raise RuntimeError("cudaGetDeviceProperties: unknown error")

    failing = SimpleNamespace(cuda_devices=fail)
    assert env._cuda_devices(failing) == "asking fails: cudaGetDeviceProperties: unknown error"


def test_a_forked_child_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert "fork" in env._cuda_devices(SimpleNamespace())

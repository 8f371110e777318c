"""What ``fastcomm env`` says of CUDA devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastcomm import _build_info
from fastcomm._commands import env


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

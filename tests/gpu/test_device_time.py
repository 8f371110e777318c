"""The clock of the benchmarks on a real GPU: the device's time does not include the host's."""

from __future__ import annotations

import time

import pytest
import torch

from fastcomm._measure import device_time

pytestmark = pytest.mark.gpu


def test_the_devices_time_is_not_the_hosts() -> None:
    tensor = torch.ones(1 << 20, device="cuda")

    def slow_to_queue() -> None:
        tensor.add_(1)
        time.sleep(0.02)
        tensor.add_(1)

    sample = device_time.clock_for("cuda:0").sample(slow_to_queue)
    assert sample.host_ms >= 20 and sample.device_ms < 5
    assert device_time.launches(slow_to_queue) == 2


def test_work_that_waits_for_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_time.CudaClock, "LONGEST", 10_000_000)
    with pytest.raises(RuntimeError, match="waits for the device"):
        device_time.clock_for("cuda:0").sample(torch.cuda.synchronize)

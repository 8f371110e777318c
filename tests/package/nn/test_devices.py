"""Parts of DataParallel that only devices show: streams, places of results, lists of devices."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from support.places import ACCELERATOR, count
from support.steps import gradients, small_net, stepped
from torch import nn

from fastcomm.nn.parallel import DataParallel

pytestmark = pytest.mark.accelerator


@pytest.mark.parametrize("buffers", ["first", "mean", "sync_batchnorm"])
def test_replicas_run_on_the_callers_streams(buffers: Any) -> None:
    """Run forward and backward passes on non-default streams, and read results on others."""
    devices = ACCELERATOR.devices(3)
    slots = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    there = copy.deepcopy(slots).to(devices[0])
    parallels = [
        DataParallel(slots, ["cpu"] * 3, buffers=buffers),
        DataParallel(there, devices, buffers=buffers),
    ]
    sides = [torch.Stream(device) for device in devices]
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        rows = torch.randn(12, 4, generator=generator, dtype=torch.float64)
        with contextlib.ExitStack() as stack:
            for side in reversed(sides):  # the first device's last: it is the current one
                stack.enter_context(side)
            results = []
            for parallel, device in zip(parallels, ("cpu", devices[0]), strict=True):
                parallel.module.zero_grad()
                output = parallel(rows.to(device))
                output.square().sum().backward()
                with torch.no_grad():
                    for parameter in parallel.module.parameters():
                        assert parameter.grad is not None
                        parameter.sub_(parameter.grad, alpha=0.1)
                results.append([output, *gradients(parallel.module), *parallel.module.buffers()])
            for here, away in zip(*results, strict=True):
                ACCELERATOR.check_alike(away, here)


def test_results_go_to_any_device_and_come_from_any() -> None:
    devices = ACCELERATOR.devices(4)
    net, x = small_net(), torch.randn(7, 6, dtype=torch.float64)
    slots = DataParallel(copy.deepcopy(net), ["cpu"] * 3)
    wanted = slots(x)
    wanted.square().sum().backward()
    for output_device in (*devices, "cpu", None):
        model = copy.deepcopy(net).to(devices[0])
        parallel = DataParallel(model, devices[:3], output_device)
        for begins in ("cpu", devices[3], devices[0]):
            model.zero_grad()
            given_x = x.to(begins, copy=True).requires_grad_()
            output = parallel(given_x)
            assert output.device == torch.device(output_device or devices[0])
            ACCELERATOR.check_alike(output, wanted)
            output.square().sum().backward()
            assert given_x.grad is not None and given_x.grad.device == torch.device(begins)
            for ours, theirs in zip(gradients(model), gradients(slots), strict=True):
                ACCELERATOR.check_alike(ours, theirs)


def test_devices_that_stand_several_times_and_slots_beside_devices() -> None:
    one, two, _ = ACCELERATOR.devices(3)
    net, x = small_net(), torch.randn(8, 6, dtype=torch.float64)
    wanted = stepped(DataParallel(copy.deepcopy(net), ["cpu"] * 4), x)
    for devices in ([one, one, one, one], [two, one, two, one], [one, "cpu", two, "cpu"]):
        model = copy.deepcopy(net).to(devices[0])
        parallel = DataParallel(model, devices)
        for ours, theirs in zip(stepped(parallel, x), wanted, strict=True):
            ACCELERATOR.check_alike(ours, theirs)


def test_default_devices_are_all_of_them() -> None:
    parallel = DataParallel(small_net().to(ACCELERATOR.first))
    assert parallel.device_ids == list(range(count())) and parallel.output_device == 0
    x = torch.randn(2 * count(), 6, dtype=torch.float64)
    torch.testing.assert_close(parallel(x).cpu(), small_net()(x))

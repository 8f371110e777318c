"""The loss inside the replicas, and of outputs that were not gathered."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from support.places import ACCELERATOR, Place, count, module
from support.steps import gradients
from torch import nn
from torch.nn import functional as F

from fastcomm.nn.parallel.data_parallel import DataParallel, DataParallelCriterion

TWO = ["cpu", "cpu"]


def _net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 3).double()


@pytest.mark.parametrize("rows", [4, 7, 1])
def test_the_loss_in_the_replicas(place: Place, rows: int) -> None:
    plain, x = _net(), torch.randn(rows, 6, dtype=torch.float64)
    net, targets = copy.deepcopy(plain).to(place.first), torch.randint(3, (rows,))
    three = place.devices(3)
    loss = F.cross_entropy(plain(x), targets)
    loss.backward()
    wanted = gradients(plain)
    parallel = DataParallel(net, three, loss_fn=F.cross_entropy)
    elsewhere = DataParallel(net, three, three[2], loss_fn=F.cross_entropy)
    ungathered = DataParallel(net, three, gather_outputs=False)
    outputs = ungathered(place.put(x))
    assert [output.device for output in outputs] == three[: len(outputs)]
    for losses, device in (
        (parallel(x, targets), three[0]),
        (elsewhere(x, place.put(targets)), three[2]),
        (DataParallelCriterion(nn.CrossEntropyLoss())(outputs, targets), three[0]),
        (DataParallelCriterion(nn.CrossEntropyLoss(), "cpu")(ungathered(x), targets), "cpu"),
    ):
        assert losses.device == torch.device(device) and len(losses) == len(x.chunk(3))
        torch.testing.assert_close(losses.mean().cpu(), loss)
        net.zero_grad()
        losses.mean().backward()
        for ours, theirs in zip(gradients(net), wanted, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


class Summed(nn.Module):
    """A model that computes its loss itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), targets, reduction="sum")


@pytest.mark.parametrize("rows", [6, 7])
@pytest.mark.parametrize("where", ["of what was gathered", "in the module"])
def test_losses_that_are_sums(place: Place, rows: int, where: str) -> None:
    """As in torch: gradients are those of the sum over the batch, not averaged."""
    plain, x = _net(), torch.randn(rows, 6, dtype=torch.float64)
    net, targets = copy.deepcopy(plain).to(place.first), torch.randint(3, (rows,))
    loss, three = Summed(plain)(x, targets), place.devices(3)
    loss.backward()
    if where == "in the module":
        sums = DataParallel(Summed(net), three)(x, targets)
        parts = zip(x.chunk(3), targets.chunk(3), strict=True)
        wanted = torch.stack([Summed(plain)(*part) for part in parts])
        torch.testing.assert_close(sums.cpu(), wanted)
        ours = sums.sum()
    else:
        outputs = DataParallel(net, three)(x)
        ours = F.cross_entropy(outputs, place.put(targets), reduction="sum")
    torch.testing.assert_close(ours.cpu(), loss)
    ours.backward()
    for grad, want in zip(gradients(net), gradients(plain), strict=True):
        torch.testing.assert_close(grad.cpu(), want)


def test_misuse_of_losses() -> None:
    x, y = torch.randn(4, 2), torch.randn(4, 2)
    with pytest.raises(TypeError, match="the last positional argument is the targets"):
        DataParallel(nn.Identity(), TWO, loss_fn=F.mse_loss)(input=x)
    with pytest.raises(ValueError, match="one number for each replica"):
        DataParallel(nn.Identity(), TWO, loss_fn=lambda a, b: a - b)(x, y)
    with pytest.raises(TypeError, match="gather_outputs=False"):
        DataParallelCriterion(nn.MSELoss())(x, y)


def _peaks(in_replicas: bool) -> list[int]:
    """Return the bytes that each device holds at most in a step, after others."""
    devices = ACCELERATOR.devices(min(count(), 4))
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2048)).to(devices[0])
    loss_fn = F.cross_entropy if in_replicas else None
    parallel: Any = DataParallel(net, devices, loss_fn=loss_fn)
    x, targets = torch.randn(64 * len(devices), 32), torch.randint(2048, (64 * len(devices),))
    for step in range(3):
        gc.collect()
        ACCELERATOR.synchronize()
        if step == 2:
            for device in devices:
                module().reset_peak_memory_stats(device)
        if in_replicas:
            loss = parallel(x, targets).mean()
        else:
            loss = F.cross_entropy(parallel(x), targets.to(devices[0]))
        loss.backward()
        net.zero_grad()
        del loss
    ACCELERATOR.synchronize()
    return [module().max_memory_allocated(device) for device in devices]


@pytest.mark.accelerator
@pytest.mark.skipif(count() < 2, reason="needs two devices")
def test_memory_is_even_where_the_loss_is_in_the_replicas() -> None:
    """When gathered, all outputs and what is computed from them lie on the first device."""
    even, gathered = _peaks(in_replicas=True), _peaks(in_replicas=False)
    assert max(even) <= 1.2 * min(even), even
    assert gathered[0] == max(gathered) > 1.2 * min(gathered), gathered
    assert max(even) < max(gathered)

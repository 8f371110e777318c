"""The loss inside the replicas, and of outputs that were not gathered."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fastcomm.data_parallel import DataParallel, DataParallelCriterion

TWO = ["cpu", "cpu"]


def _net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 3).double()


def _gradients(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("rows", [4, 7, 1])
def test_the_loss_in_the_replicas(rows: int) -> None:
    plain, x = _net(), torch.randn(rows, 6, dtype=torch.float64)
    net, targets = copy.deepcopy(plain), torch.randint(3, (rows,))
    loss = F.cross_entropy(plain(x), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = _gradients(plain)
    parallel = DataParallel(net, ["cpu"] * 3, loss_fn=F.cross_entropy)
    ungathered = DataParallel(net, ["cpu"] * 3, gather_outputs=False)
    criterion = DataParallelCriterion(nn.CrossEntropyLoss())
    for losses in (parallel(x, targets), criterion(ungathered(x), targets)):
        assert len(losses) == len(x.chunk(3))
        torch.testing.assert_close(losses.mean(), loss)
        net.zero_grad()
        losses.mean().backward()
        for ours, theirs in zip(_gradients(net), wanted, strict=True):
            torch.testing.assert_close(ours, theirs)


class Summed(nn.Module):
    """A model that computes its loss itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), targets, reduction="sum")


@pytest.mark.parametrize("rows", [6, 7])
@pytest.mark.parametrize("where", ["of what was gathered", "in the module"])
def test_losses_that_are_sums(rows: int, where: str) -> None:
    """As with torch's: gradients are those of the sum over the batch, and not averaged."""
    plain, x = _net(), torch.randn(rows, 6, dtype=torch.float64)
    net, targets = copy.deepcopy(plain), torch.randint(3, (rows,))
    loss = Summed(plain)(x, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    if where == "in the module":
        sums = DataParallel(Summed(net), ["cpu"] * 3)(x, targets)
        parts = zip(x.chunk(3), targets.chunk(3), strict=True)
        torch.testing.assert_close(sums, torch.stack([Summed(plain)(*part) for part in parts]))
        ours = sums.sum()
    else:
        ours = F.cross_entropy(DataParallel(net, ["cpu"] * 3)(x), targets, reduction="sum")
    torch.testing.assert_close(ours, loss)
    ours.backward()
    for grad, wanted in zip(_gradients(net), _gradients(plain), strict=True):
        torch.testing.assert_close(grad, wanted)


def test_misuse_of_losses() -> None:
    x, y = torch.randn(4, 2), torch.randn(4, 2)
    with pytest.raises(TypeError, match="the last positional argument is the targets"):
        DataParallel(nn.Identity(), TWO, loss_fn=F.mse_loss)(input=x)
    with pytest.raises(ValueError, match="one number for each replica"):
        DataParallel(nn.Identity(), TWO, loss_fn=lambda a, b: a - b)(x, y)
    with pytest.raises(TypeError, match="gather_outputs=False"):
        DataParallelCriterion(nn.MSELoss())(x, y)

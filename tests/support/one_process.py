"""What several ranks train to, in one process: each rank's gradient, then their mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from support.tree import tree_sum
from torch import nn


class Uneven(nn.Module):
    """Shapes that do not divide: fewer rows than ranks, channels_last, a scalar; one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.head = nn.Linear(5 * 4 * 4, 7)
        self.last = nn.Linear(7, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.head(self.conv(x).flatten(1)).tanh()) * self.scale
        return out


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """Return the loss of an `Uneven` on a rank's batch of a step."""
    x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(100 * step + rank))
    loss: torch.Tensor = (model(x) - 1).square().mean()
    return loss


def give_mean(
    parameters: Sequence[nn.Parameter], losses: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, ...]]:
    """Give parameters the mean of the gradients of the ranks' losses, and return those.

    The sum is the tree's, divided afterwards, as fastcomm does it. Stock DDP divides before it,
    which changes no bit where the number of ranks is a power of two.
    """
    of_ranks = [torch.autograd.grad(loss, parameters) for loss in losses]
    for parameter, *parts in zip(parameters, *of_ranks, strict=True):
        parameter.grad = tree_sum(parts, average=True)
    return of_ranks

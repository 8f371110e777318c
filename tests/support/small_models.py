"""Models, batches and steps for tests of what shards or splits a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from support.tree import tree_sum
from torch import nn

WIDTH, HIDDEN, CLASSES, ROWS = 8, 12, 5, 6


class Block(nn.Module):
    """A residual block whose two layers tensor parallelism splits by columns, then by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.up(self.norm(x)).tanh())
        return out


class Residual(nn.Module):
    """What a module adds to its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.inner(x)
        return out


class Blocks(nn.Module):
    """Two blocks and a head of five rows, which two and four ranks share unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def blocks() -> Blocks:
    """Return a model that is the same on every rank."""
    torch.manual_seed(11)
    return Blocks()


def loss_of(model: nn.Module, batch: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the loss on one batch, which is known by its number."""
    data = torch.Generator().manual_seed(batch)
    x = torch.randn(ROWS, 4, WIDTH, generator=data).to(dtype)
    target = torch.randn(ROWS, 4, CLASSES, generator=data)
    return nn.functional.mse_loss(model(x).float(), target)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def train(
    model: nn.Module, batches: Sequence[int], make: Callable[[Any], torch.optim.Optimizer] = sgd
) -> list[float]:
    """Take a step for each batch, and return the losses."""
    optimizer = make(model.parameters())
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_in_one_process(
    steps: Sequence[Sequence[int]], make: Callable[[Any], torch.optim.Optimizer] = sgd
) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Compute what ranks that share their gradients get: batches of each step, one per rank.

    Returns the losses, a list for each step, and finally the parameters.
    """
    model = blocks()
    parameters = list(model.parameters())
    optimizer = make(parameters)
    losses = []
    for batches in steps:
        of_ranks = [loss_of(model, batch) for batch in batches]
        gradients = [torch.autograd.grad(loss, parameters) for loss in of_ranks]
        for parameter, *parts in zip(parameters, *gradients, strict=True):
            parameter.grad = tree_sum(parts, average=True)
        optimizer.step()
        losses.append([loss.item() for loss in of_ranks])
    return losses, {name: p.detach() for name, p in model.named_parameters()}

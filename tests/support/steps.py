"""Small models at work: the results of a pass, of the gradients, and of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(*inputs, **named)


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def stepped(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return results and gradients, and results again after a step, with and without a graph."""
    x = x.detach().clone().requires_grad_()
    output = model(x)
    output.square().sum().backward()
    assert x.grad is not None
    found = [output, x.grad, *gradients(model)]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    found.append(model(x))
    with torch.no_grad():
        found.append(model(x))
    return [value.detach().cpu() for value in found]

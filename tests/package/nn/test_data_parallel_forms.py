"""DataParallel against the bare module on random small models, with equal bits.

All numbers are small whole ones in float64, so that sums are exact in any order.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from support.small_models import Residual
from torch import nn

from fastcomm.nn.parallel import DataParallel

WIDTH = 3


def _whole(*shape: int) -> torch.Tensor:
    return torch.randint(-1, 2, shape).double()


def _linear() -> nn.Linear:
    layer = nn.Linear(WIDTH, WIDTH).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(_whole(*parameter.shape))
    return layer


class Offset(nn.Module):
    """Adds a buffer and a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", _whole(WIDTH))
        self.shift = nn.Parameter(_whole())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.offset + self.shift


class Model(nn.Module):
    def __init__(self, choice: random.Random) -> None:
        super().__init__()
        makes = (_linear, nn.ReLU, Offset, lambda: Residual(_linear()))
        self.layers = nn.ModuleList(choice.choice(makes)() for _ in range(choice.randint(1, 4)))
        if choice.random() < 0.5:
            self.layers.append(self.layers[0])  # shared
        self.unused = _linear() if choice.random() < 0.3 else None

    def forward(self, x: Any, scale: Any = 1, *, mask: Any = None) -> Any:
        for layer in self.layers:
            x = layer(x)
        x = x * scale
        return {"x": x} if mask is None else {"x": x * mask, "pair": (x, mask)}


def _pass(model: Any, rows: list[torch.Tensor], scale: Any, grad: bool) -> list[Any]:
    """Return the results and gradients of a pass."""
    rows = [value.clone().requires_grad_() for value in rows]
    scale = scale.clone().requires_grad_() if isinstance(scale, torch.Tensor) else scale
    x, *mask = rows
    with torch.set_grad_enabled(grad):
        results = model(x, scale, **({"mask": mask[0]} if mask else {}))
    found = [results["x"], *results.get("pair", ())]
    if grad:
        torch.stack([value.sum() for value in found]).sum().backward()
        found += [value.grad for value in (*rows, scale) if isinstance(value, torch.Tensor)]
    return found


def _changed(nets: list[Model], choice: random.Random) -> None:
    """Do the same to all of them, as an optimizer or a user does between passes."""
    what = choice.choice(["step", "step", "replace", "freeze", "mode", "assign"])
    place, fresh = choice.randrange(len(nets[0].layers)), _linear()
    for net in nets:
        parameters = list(net.parameters())
        if what == "replace":
            net.layers[place] = copy.deepcopy(fresh)
        elif what == "mode":
            net.train(not net.training)
        elif what == "freeze" and parameters:
            parameters[0].requires_grad_(not parameters[0].requires_grad)
        elif what == "assign" and hasattr(net.layers[place], "weight"):
            net.layers[place].weight = nn.Parameter(fresh.weight.detach().clone())
        with torch.no_grad():
            for parameter in net.parameters():
                if what == "step" and parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign()).clamp_(-2, 2)
                parameter.grad = None


def _compared(seed: int) -> None:
    choice = random.Random(seed)
    torch.manual_seed(seed)
    bare = Model(choice)
    net = copy.deepcopy(bare)
    count = choice.randint(1, 4)
    sizes = [choice.randint(1, 3) for _ in range(count)] if choice.random() < 0.5 else None
    parallel = DataParallel(net, ["cpu"] * count, chunk_sizes=sizes)
    for _ in range(4):
        rows = [_whole(choice.randint(1, 9), WIDTH)]
        if choice.random() < 0.5:
            rows.append(_whole(len(rows[0]), 1))
        scale = choice.choice([2, _whole()])
        grad = choice.random() < 0.8
        wanted, found = (_pass(model, rows, scale, grad) for model in (bare, parallel))
        assert all(map(torch.equal, found, wanted)) and len(found) == len(wanted)
        for ours, theirs in zip(net.parameters(), bare.parameters(), strict=True):
            zeros = torch.zeros_like(theirs)  # which an unused parameter gets, as in torch
            assert torch.equal(
                zeros if ours.grad is None else ours.grad,
                zeros if theirs.grad is None else theirs.grad,
            )
        assert all(map(torch.equal, net.buffers(), bare.buffers()))
        _changed([bare, net], choice)


def test_random_models() -> None:
    for seed in range(12):
        _compared(seed)


@pytest.mark.release
@pytest.mark.parametrize("hundred", range(10))
def test_more_random_models(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        _compared(seed)

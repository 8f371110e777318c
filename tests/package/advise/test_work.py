"""Batches, and losses of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fastcomm._advise.work import Work, rows_of

DATA = torch.arange(12.0).view(6, 2)


class Dict(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return SimpleNamespace(loss=(x * scale).sum())


@pytest.mark.parametrize(
    ("model", "sample", "loss_fn", "expected"),
    [
        (nn.Identity(), DATA, torch.sum, 66.0),
        (nn.Identity(), (DATA, 2 * DATA), nn.L1Loss(reduction="sum"), 66.0),
        (nn.Identity(), [DATA], lambda output: output.max(), 11.0),
        (Dict(), {"x": DATA, "scale": 2.0}, None, 132.0),
    ],
)
def test_losses(model: nn.Module, sample: Any, loss_fn: Any, expected: float) -> None:
    work = Work(model, sample, loss_fn)
    assert work.loss(model).item() == expected
    assert rows_of(sample) == 6
    half = work.part(2)
    assert rows_of(half.sample) == 3 and half.model is model
    assert type(half.sample) is type(sample)


def test_what_is_no_loss() -> None:
    with pytest.raises(TypeError, match=r"loss is Tensor, not a tensor of one.*loss_fn"):
        Work(nn.Identity(), DATA).loss(nn.Identity())


def test_batches_that_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="a batch of 6 rows has no 7 parts"):
        Work(nn.Identity(), DATA).part(7)
    assert rows_of(torch.tensor(1.0)) == 0 and rows_of({"name": "text"}) == 0


def test_an_optimizer_of_the_callers() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    assert Work(model, DATA, None, optimizer).optimizer_or_sgd() is optimizer
    assert isinstance(Work(model, DATA).optimizer_or_sgd(), torch.optim.SGD)

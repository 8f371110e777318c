"""Advice for models whose answer is known."""

from __future__ import annotations

import fcntl
import math
import time
from typing import Any

import pytest
import torch
from torch import nn

import fastcomm
from fastcomm._advise import measure

PASS = 0.02  # seconds


class Waiting(nn.Module):
    """A layer whose forward pass takes some time: asleep, or at work with nobody beside it."""

    def __init__(self, turns: str = "") -> None:
        super().__init__()
        self.turns = turns
        self.layer = nn.Linear(64, 64)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        if self.turns:
            with open(self.turns) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = time.perf_counter() + PASS
                while time.perf_counter() < end:  # an idle machine would wake it late
                    pass
        else:
            time.sleep(PASS)
        result: torch.Tensor = self.layer(data)
        return result


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_ROUND_S", 0.05)


def _advice(model: nn.Module, **options: Any) -> fastcomm.Advice:
    said: list[str] = []
    sample = (torch.ones(8, 64), torch.ones(8, 64))
    loss = nn.MSELoss()
    found = fastcomm.advise(model, sample, loss, turns=2, progress=said.append, **options)
    assert "starting one process" in said and said[-1] == "turn 2 of 2"
    return found


@pytest.mark.serial  # what is faster is judged
def test_a_model_that_leaves_the_cores_idle() -> None:
    """Two ranks wait beside each other, so they are twice as fast."""
    model = Waiting()
    before = [p.clone() for p in model.parameters()]
    advice = _advice(model, ranks=[2], verify=True)
    ddp = advice.predictions[1]
    # It is nearly 2 where nothing goes on beside it.
    assert ddp.rows == 16 and advice.times_as_fast(ddp) > 1.2, str(advice)
    assert "DDP on 2 ranks trains" in advice.sentence
    assert ddp.measured is not None and ddp.seconds > PASS and ddp.measured > PASS
    assert advice.limits[0].busy < 1.0
    assert all(map(torch.equal, before, model.parameters()))
    assert all(p.grad is None for p in model.parameters())
    checked = [each.way for each in advice.settings if each.measured is not None]
    assert checked == ["DDP, 16 bits on the wire", "DDP, gradient_as_bucket_view"]


@pytest.mark.serial
def test_a_model_that_needs_the_whole_machine(tmp_path: Any) -> None:
    """Two ranks take turns, so they are no faster than one."""
    turns = tmp_path / "turns"
    turns.touch()
    advice = _advice(Waiting(str(turns)), ranks=[2])
    for each in advice.predictions[1:]:
        assert each.seconds > 2 * PASS and each.measured is None
        assert advice.times_as_fast(each) < 1.2, str(advice)  # 1 where nothing goes on beside it
    assert advice.limits[0].sharing < 0.8


def test_arguments_that_make_no_sense() -> None:
    model, sample = nn.Linear(2, 2), torch.ones(4, 2)
    for options, said in (
        ({"ranks": [1]}, "ranks must be 2 or more"),
        ({"turns": 1}, "turns must be 2 or more"),
        ({"links": [0.0]}, "links must be above 0"),
    ):
        with pytest.raises(ValueError, match=said):
            fastcomm.advise(model, sample, torch.sum, **options)
    with pytest.raises(ValueError, match="no tensor with rows"):
        fastcomm.advise(model, math.pi, torch.sum)


def test_trainings_that_cannot_be_run() -> None:
    with pytest.raises(fastcomm.AdviseError, match=r"(?s)mat1 and mat2 shapes"):
        fastcomm.advise(nn.Linear(3, 2), torch.ones(4, 2), torch.sum)
    with pytest.raises(fastcomm.AdviseError, match="4 rows cannot be divided among 5 ranks"):
        fastcomm.advise(nn.Linear(2, 2), torch.ones(4, 2), torch.sum, ranks=[5])

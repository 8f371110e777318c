"""Training loops that know nothing of being watched."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import astuple
from typing import Any

import pytest
import torch
from torch import nn

from fastcomm._advise import loop
from fastcomm._advise.loop import Enough, Loop, Parts, send_through


class FakeTime:
    """A clock that stands still but where it is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


time = FakeTime()


@pytest.fixture(autouse=True)
def _fake_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "time", time)


class Slow(nn.Module):
    """A linear layer whose passes take a known time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        result = self.inner(data)
        if result.requires_grad:
            result.register_hook(lambda _: time.sleep(0.03))
        return result


class Watched:
    """What a loop has told."""

    def __init__(self, most: int = 5) -> None:
        self.most = most
        self.model: Any = None
        self.optimizer: Any = None
        self.what: Any = None
        self.steps: list[Parts] = []

    def found(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert self.model is None
        self.model, self.optimizer = model, optimizer

    def stepped(self, parts: Parts) -> None:
        self.steps.append(parts)
        if len(self.steps) == self.most:
            raise Enough


def _train(watched: Watched, model: nn.Module, passes: int = 1, steps: int = 100) -> int:
    """Train, as a script would; return how many steps were begun."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.1)
    done = 0
    try:
        with Loop(watched.found, watched.stepped):
            for _ in range(steps):
                done += 1
                optimizer.zero_grad()
                with torch.no_grad():
                    model(torch.ones(2, 4))  # a validation pass is none of training
                for _ in range(passes):
                    time.sleep(0.01)
                    loss = nn.MSELoss()(model(torch.ones(2, 4)), torch.ones(2, 1))
                    loss.backward()
                time.sleep(0.04)
                optimizer.step()
                other.step()
    except Enough:
        pass
    assert watched.optimizer is optimizer
    return done


def test_steps_and_their_parts() -> None:
    watched, model = Watched(), Slow()
    backward = torch.autograd.backward
    assert _train(watched, model) == 6  # the first one shows what is trained
    assert watched.model is model and torch.autograd.backward is backward
    for parts in watched.steps:
        assert astuple(parts) == pytest.approx((0.03, 0.02, 0.03, 0.04, 1))
    assert not model._forward_pre_hooks


def test_gradients_that_accumulate() -> None:
    watched = Watched(3)
    _train(watched, Slow(), passes=3)
    for parts in watched.steps:
        assert astuple(parts) == pytest.approx((0.05, 0.06, 0.09, 0.04, 3))


def test_a_loop_that_ends_early() -> None:
    watched = Watched()
    assert _train(watched, Slow(), steps=3) == 3
    assert len(watched.steps) == 2


def test_calls_go_through_what_wraps_the_model() -> None:
    class Twice(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return 2 * self.module(data)

    model = nn.Linear(3, 3)
    whole = nn.Sequential(model, nn.ReLU())
    data = torch.ones(1, 3)
    before = model(data)
    names = list(whole.state_dict())
    send_through(model, Twice(model))
    assert torch.equal(model(data), 2 * before)
    assert torch.equal(whole(data), torch.relu(2 * before))
    assert isinstance(model, nn.Linear) and list(whole.state_dict()) == names
    with pytest.raises(TypeError):
        model()
    assert torch.equal(model(data), 2 * before)
    averaged = copy.deepcopy(model)
    with torch.no_grad():
        averaged.weight.zero_()
        averaged.bias.fill_(1.0)
    assert torch.equal(averaged(data), torch.ones(1, 3))


def test_copies_of_the_model_do_not_copy_the_watcher() -> None:
    """Scripts average weights in copies, and DataParallel makes some."""
    watched, copies = Watched(), []

    class Uncopied:
        def __deepcopy__(self, _: Any) -> Any:
            raise AssertionError("copied")

    watched.most = 3
    watched.what = Uncopied()
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(Enough), Loop(watched.found, watched.stepped):
        while True:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            copies.append(copy.deepcopy(model))
    assert len(copies) == 3 and len(watched.steps) == 3

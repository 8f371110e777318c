"""docs/examples/two_stages.py: a model over two devices computes what it does in one piece."""

from __future__ import annotations

import contextlib
import copy
import re
import runpy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.patience import ENDS
from support.places import ACCELERATOR
from support.torchrun import torchrun
from torch import nn

import fastcomm

SCRIPT = Path(__file__).resolve().parents[3] / "docs/examples/two_stages.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_stages_compute_what_the_model_does(example: dict[str, Any]) -> None:
    stages, whole = example["build"]()
    x = torch.randn(24, 16, requires_grad=True)
    grads = []
    for model in (whole, stages):
        model.zero_grad()
        x.grad = None
        model(x).square().sum().backward()
        grads.append([x.grad, *(p.grad.clone() for p in whole.parameters())])
    for theirs, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(stages(x), whole(x))


def test_an_error_of_the_first_stage_comes_out(example: dict[str, Any]) -> None:
    stages, _ = example["build"]()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        stages(torch.randn(4, 3))


@pytest.mark.parametrize("failing", [None, "first", "second"])
def test_no_thread_outlives_a_pass(example: dict[str, Any], failing: str | None) -> None:
    """A thread that is in torch when the interpreter ends aborts the process."""
    calls = []

    class Stage(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(threading.current_thread())
            if self.name == failing and len(calls) > 3:
                raise RuntimeError("this micro-batch fails")
            return x

    stages = example["TwoStages"](Stage("first"), Stage("second"), 4)
    before = threading.enumerate()
    with pytest.raises(RuntimeError, match="fails") if failing else contextlib.nullcontext():
        stages(torch.arange(8))
    assert len(set(calls)) == 2
    assert threading.enumerate() == before


def test_stages_overlap(example: dict[str, Any]) -> None:
    """Each stage waits for a moment in which the other is at work too."""
    meeting = threading.Barrier(2)

    class Waits(torch.nn.Module):
        def __init__(self, skipped: int) -> None:
            super().__init__()
            self.calls, self.skipped = 0, skipped

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls != self.skipped:  # the first stage is alone at first, the second at last
                meeting.wait(timeout=ENDS)
            return x

    stages = example["TwoStages"](Waits(1), Waits(4), 4)
    assert torch.equal(stages(torch.arange(8)), torch.arange(8))


@pytest.mark.accelerator
def test_stages_on_devices_of_their_own(example: dict[str, Any]) -> None:
    """Two devices for each stage; the first stage's results go to where the second begins."""
    devices = ACCELERATOR.devices(4)
    first = nn.Sequential(nn.Linear(16, 64), nn.Tanh())
    second = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    found = []
    for places in ([torch.device("cpu")] * 4, devices):
        halves = [copy.deepcopy(first).to(places[0]), copy.deepcopy(second).to(places[2])]
        stages = example["TwoStages"](
            fastcomm.nn.parallel.DataParallel(halves[0], places[:2], output_device=places[2]),
            fastcomm.nn.parallel.DataParallel(halves[1], places[2:]),
            micro_batches=4,
        )
        x = torch.randn(24, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        output = stages(x)
        assert output.device == places[2]
        output.square().sum().backward()
        grads = [p.grad for half in halves for p in half.parameters()]
        found.append([value.detach().cpu() for value in [output, x.grad, *grads]])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here)


@pytest.mark.parametrize("ranks", [0, 2])
def test_the_script(ranks: int) -> None:
    said = torchrun(SCRIPT, ranks=ranks)
    sums = re.findall(r"sum of weights (-?\d+\.\d+)", said)
    assert len(sums) == max(1, ranks) and len(set(sums)) == 1, said
    losses = re.findall(r"rank 0, step \d+: loss (\d+\.\d+)", said)
    assert float(losses[-1]) < float(losses[0])

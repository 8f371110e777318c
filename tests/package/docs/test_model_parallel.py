"""docs/examples/two_stages.py: a model over two devices computes what it does in one piece."""

from __future__ import annotations

import contextlib
import copy
import runpy
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.patience import ENDS
from support.places import ACCELERATOR
from support.ranks import World, run_ranks
from support.tree import same_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastcomm

SCRIPT = Path(__file__).resolve().parents[3] / "docs/examples/two_stages.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def build(example: dict[str, Any], places: Sequence[Any] = ("cpu",) * 4) -> tuple[Any, nn.Module]:
    """Return a model in stages, of two replicas each, and the same layers in one piece."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(16, 64), nn.Tanh()).to(places[0])
    second = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(places[2])
    stages = example["TwoStages"](
        fastcomm.nn.parallel.DataParallel(first, places[:2], output_device=places[2]),
        fastcomm.nn.parallel.DataParallel(second, places[2:]),
        micro_batches=4,
    )
    return stages, nn.Sequential(first, second)


def test_stages_compute_what_the_model_does(example: dict[str, Any]) -> None:
    stages, whole = build(example)
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
    stages, _ = build(example)
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
    found = []
    for places in ([torch.device("cpu")] * 4, devices):
        stages, whole = build(example, places)
        x = torch.randn(24, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        output = stages(x)
        assert output.device == places[2]
        output.square().sum().backward()
        grads = [p.grad for p in whole.parameters()]
        found.append([value.detach().cpu() for value in [output, x.grad, *grads]])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here)


def _trained(world: World) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the weights that the ranks train, and those of one process on all their batches."""
    world.init()
    stages, whole = build(runpy.run_path(str(SCRIPT)))
    alone = copy.deepcopy(whole)
    for model, ranks in (
        (DistributedDataParallel(stages), [world.rank]),
        (alone, range(world.size)),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(10):
            seeds = [torch.Generator().manual_seed(10 * step + rank) for rank in ranks]
            x = torch.cat([torch.randn(64, 16, generator=seed) for seed in seeds])
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 4).backward()
            optimizer.step()
    return [p.detach() for p in whole.parameters()], [p.detach() for p in alone.parameters()]


def test_stages_under_stock_ddp() -> None:
    """A pair of stages in each process trains to what one process does, the same on all ranks."""
    (first, alone), (second, _) = run_ranks(2, _trained)
    assert all(map(same_bits, first, second))
    for ours, theirs in zip(first, alone, strict=True):
        torch.testing.assert_close(ours, theirs)

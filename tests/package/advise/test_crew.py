"""Workers that are asked, and what becomes of those that fail."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from support.patience import has_ended, until
from torch import nn

from fastcomm._advise.crew import AdviseError, Crew, StoppedError
from fastcomm._advise.told import Spec

FORWARD, BACKWARD, REST = 0.004, 0.006, 0.002


class Slow(nn.Module):
    """A layer whose passes take some time, and no processor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD)
        result: torch.Tensor = self.layer(data)
        if result.requires_grad:
            result.register_hook(lambda _: time.sleep(BACKWARD))
        return result


@dataclass
class Training:
    """A loop that ends, or goes wrong, after some steps."""

    steps: int = 1_000_000
    then: Callable[[], None] = lambda: None

    def __call__(self, spec: Spec) -> None:
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(os.environ)
        torch.manual_seed(0)
        model = Slow()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(self.steps):
            optimizer.zero_grad()
            model(torch.ones(8 // spec.divisor, 256)).sum().backward()
            time.sleep(REST)
            optimizer.step()
        self.then()


def fail() -> None:
    raise ArithmeticError("it went wrong")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wrap() -> None:
    model = nn.DataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()


def form_a_group() -> None:
    dist.init_process_group("gloo", init_method="file:///nowhere", rank=0, world_size=1)


def test_ranks() -> None:
    with Crew(Spec(2), Training()) as crew:
        facts = crew.facts(2)
        assert facts.rows == 8 and facts.gradient_bytes == 4 * 257 * 256
        plain = crew.round("plain", 5)
        assert len(plain) == 2 and all(len(each.steps) == 5 for each in plain)
        for each in plain:
            for step in each.steps:
                assert step.forward >= FORWARD and step.backward >= BACKWARD
                assert step.optimizer >= REST and step.passes == 1
        quiet = crew.round("quiet", 4)
        assert [len(each.passes) for each in quiet] == [4, 4]
        assert sum(size for size, _ in quiet[0].passes[0].buckets) == facts.gradient_bytes
        for way in ("ddp", "views", "bfloat16", "quiet views", "plain"):
            assert all(each.seconds > FORWARD for each in crew.round(way, 3)), way
        assert crew.apart(3).seconds > FORWARD
        costs = crew.costs([4096, 8], "all_reduce")
        assert set(costs) == {8, 4096} and min(costs.values()) > 0
        beside = crew.beside(4096, 30, 3)
        assert all(each.messages[0] == 30 and each.messages[1] > 0 for each in beside)


def test_replicas() -> None:
    with Crew(Spec(slots=2, divisor=2), Training()) as crew:
        assert crew.facts(2).rows == 4
        for way in ("quiet slots", "slots"):
            (found,) = crew.round(way, 3)
            # Replicas sleep beside each other.
            assert sum(step.forward for step in found.steps) / 3 > FORWARD
        assert crew.moved_by_slots(2) > 0


@pytest.mark.parametrize(
    ("training", "error", "said"),
    [
        (Training(1), StoppedError, "ended by itself after 1 steps"),
        (Training(0), StoppedError, "the script has no training loop"),
        (
            Training(6, fail),
            AdviseError,
            r"with one process:(.|\n)*ArithmeticError: it went wrong",
        ),
        (Training(6, die), AdviseError, r"SIGKILL(.|\n)*memory may not have sufficed"),
        (Training(0, wrap), AdviseError, "its model is DataParallel already"),
        (Training(0, form_a_group), AdviseError, "it forms a process group"),
    ],
)
def test_trainings_that_end(training: Training, error: type[AdviseError], said: str) -> None:
    with pytest.raises(error, match=said) as raised, Crew(Spec(), training) as crew:
        crew.facts(2)
        crew.round("plain", 100)
    assert "worker.py" not in str(raised.value)  # frames are the training's alone


@pytest.mark.parametrize(
    ("training", "said"),
    [(Training(0), "has no training loop"), (Training(0, fail), "it went wrong")],
)
def test_trainings_that_end_before_they_are_asked(training: Training, said: str) -> None:
    with pytest.raises(AdviseError, match=said), Crew(Spec(), training) as crew:
        until(lambda: has_ended(crew.ranks[0].process.pid), "the worker ends")
        crew.facts(2)


def test_a_rank_that_dies() -> None:
    with pytest.raises(AdviseError, match="SIGKILL"), Crew(Spec(2), Training(9, die)) as crew:
        while True:
            crew.round("ddp", 3)


def test_an_exception_ends_the_workers() -> None:
    pids: list[int] = []
    with contextlib.suppress(KeyError), Crew(Spec(2), Training()) as crew:
        pids += [rank.process.pid for rank in crew.ranks]
        crew.round("ddp", 3)
        raise KeyError
    assert len(pids) == 2
    until(lambda: all(map(has_ended, pids)), "the workers end")

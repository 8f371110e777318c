"""Random numbers in compiled replicas on CPU slots, and operators of Python in any replica."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import fastcomm
from fastcomm.nn.parallel import DataParallel

SLOTS = ["cpu", "cpu", "cpu"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Drawing(nn.Module):
    """Draws by operators that take a generator, and by ones that do not."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(64))
        self.again = again

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x * self.w, 0.5)
        return y + torch.rand_like(y).round() * y

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.draw, x, use_reentrant=False) if self.again else self.draw(x)


def the_data_parallel(module: nn.Module, **how: Any) -> Any:
    return torch.compile(DataParallel(module, SLOTS), **how)


def the_module(module: nn.Module, **how: Any) -> Any:
    module.compile(**how)
    return DataParallel(module, SLOTS)


def step(model: Any, seed: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    x = torch.ones(6, 64, requires_grad=True)
    out = model(x)
    out.sum().backward()
    assert x.grad is not None
    grads = [p.grad.clone() for p in model.parameters()]
    return [out.detach(), x.grad, *grads, torch.get_rng_state()]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, a, b))


INDUCTOR = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")


@pytest.mark.parametrize(
    ("way", "again", "backend", "as_eager"),
    [
        (the_data_parallel, False, "aot_eager", True),
        (the_module, True, "aot_eager", True),
        pytest.param(the_module, False, "inductor", False, marks=INDUCTOR),
        pytest.param(the_data_parallel, True, "inductor", True, marks=INDUCTOR),
        *(
            pytest.param(way, again, "inductor", as_eager, marks=[INDUCTOR, pytest.mark.release])
            for way in (the_data_parallel, the_module)
            for again in (False, True)
            for as_eager in (False, True)
        ),
    ],
)
def test_one_seed_gives_the_same_bits(
    way: Callable[..., Any], again: bool, backend: str, as_eager: bool
) -> None:
    """From the first pass on, in which replicas are compiled; where it can be, those of eager."""
    options = {"fallback_random": True} if backend == "inductor" and as_eager else None
    model = way(Drawing(again), backend=backend, options=options)
    first = step(model)
    assert all(equal(first, step(model)) for _ in range(5))
    assert torch.equal(first[0], first[1])  # x and w are ones: the masks that the outputs have
    assert torch.equal(first[0].sum(0), first[2])
    parts = first[0].chunk(3)
    assert not torch.equal(parts[0], parts[1]) and not torch.equal(parts[1], parts[2])
    assert not torch.equal(first[0], step(model, 4)[0])
    assert equal(first, step(DataParallel(Drawing(again), SLOTS))) == as_eager


class Attends(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return flex_attention(x, x, x)


class Chooses(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))


@pytest.mark.parametrize("kind", [Attends, Chooses])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_higher_order_operators_run_in_replicas(kind: type[nn.Module]) -> None:
    x = torch.randn(4, 1, 16, 4)
    with torch.no_grad():
        wanted = kind()(x.abs())
        torch.testing.assert_close(DataParallel(kind(), SLOTS)(x.abs()), wanted)


def test_higher_order_operators_that_come_later_run_in_replicas() -> None:
    fastcomm.nn.parallel.parallel_apply([torch.sin] * 2, [torch.ones(1)] * 2)

    class Twice(torch._ops.HigherOrderOperator):
        def __call__(self, x: torch.Tensor) -> Any:
            return super().__call__(x)

    twice = Twice("fastcomm_tests_twice")
    for key in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.AutogradCPU):
        twice.py_impl(key)(lambda x: x * 2)
    results = fastcomm.nn.parallel.parallel_apply([twice] * 2, [torch.ones(1)] * 2)
    assert [result.item() for result in results] == [2.0, 2.0]

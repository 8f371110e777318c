"""Random numbers in replicas on CPU slots, eager and compiled, and higher-order operators."""

from __future__ import annotations

import functools
import importlib
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from fastcomm.nn.parallel import DataParallel, parallel_apply

SLOTS = ["cpu", "cpu", "cpu"]
MASK = (1 << 64) - 1


def mixed(x: Any) -> Any:
    """Return the number that splitmix64 gives in the state ``x``."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def derived(state: Any, part: Any) -> Any:
    """Return the state of the stream of replica ``part`` (ADR 37), given the caller's state.

    The bytes are those of ``torch.get_rng_state``: words of 64 bits for the seed, for two numbers
    ("left" and "seeded") and for "next", then 624 words of the engine, then kept normal numbers.
    """
    words = state[:5040].view(torch.int64).tolist()
    left, after = words[1] & 0xFFFFFFFF, words[2]
    hash_ = 0
    for word in words[3:627]:
        hash_ = mixed(hash_ ^ word)
    hash_ = mixed(hash_ ^ left)
    hash_ = mixed(hash_ ^ after)
    keeps_float, keeps_double = bool(state[5052]), bool(state[5040])
    hash_ = mixed(hash_ ^ (int(keeps_float) | 2 * int(keeps_double)))
    hash_ = mixed(hash_ ^ part)
    made = list(words)
    for j in range(624):
        hash_ = mixed(hash_)
        made[3 + j] = hash_ >> 32
    made[1] = 1 | (1 << 32)
    made[2] = 0
    result = torch.zeros_like(state)
    result[: len(made) * 8] = torch.tensor(made).view(torch.uint8)
    result[5016:] = 0  # no kept normal numbers
    return result


class Drawing(nn.Module):
    """Draws by operators with and without a parameter for a generator."""

    def __init__(self, reentrant: bool | None = None, nested: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(64))
        self.reentrant, self.nested = reentrant, nested

    def pause(self) -> None:
        pass

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        self.pause()
        y = F.dropout(x * self.w, 0.5)
        self.pause()
        return y + torch.rand_like(y).round() * y  # rrelu differs in torch's checkpoints

    def forward(self, x: torch.Tensor) -> Any:
        if self.reentrant is None:
            return self.draw(x)
        inner = self.draw
        if self.nested:

            def inner(x: torch.Tensor) -> Any:
                return checkpoint(self.draw, x, use_reentrant=self.reentrant)

        return checkpoint(inner, x, use_reentrant=self.reentrant)


class Delayed(Drawing):
    """Draws with pauses that differ from run to run."""

    def pause(self) -> None:
        time.sleep(random.random() / 1000)


def step(model: Any, seed: int = 3) -> list[torch.Tensor]:
    """Return the output of a step, all gradients, and the generator's state afterwards."""
    torch.manual_seed(seed)
    model.zero_grad()
    x = torch.ones(6, 64, requires_grad=True)
    out = model(x)
    out.sum().backward()
    assert x.grad is not None
    grads = [p.grad.clone() for p in model.parameters()]
    return [out.detach(), x.grad, *grads, torch.get_rng_state()]


def equal(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def repeated(model: Any, runs: int) -> list[torch.Tensor]:
    """Check that steps of one seed are equal and replicas' masks differ; return a step's result."""
    first = step(model)
    assert all(equal(first, step(model)) for _ in range(runs))
    assert not torch.equal(first[0], step(model, 4)[0])
    assert torch.equal(first[0], first[1])  # x and w are ones: both are the masks
    assert torch.equal(first[0].sum(0), first[2])
    pairs = itertools.combinations(first[0].chunk(3), 2)
    assert not any(torch.equal(one, other) for one, other in pairs)
    return first


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_one_seed_gives_the_same_bits(reentrant: bool | None, nested: bool) -> None:
    repeated(DataParallel(Delayed(reentrant, nested), SLOTS), 20)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget compiled code before and after a test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def the_data_parallel(module: nn.Module, **how: Any) -> Any:
    """Return a DataParallel that is compiled as a whole."""
    return torch.compile(DataParallel(module, SLOTS), **how)


def the_module(module: nn.Module, **how: Any) -> Any:
    """Return a DataParallel of a compiled module."""
    module.compile(**how)
    return DataParallel(module, SLOTS)


INDUCTOR = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("way", "reentrant", "backend", "as_eager"),
    [
        (the_data_parallel, None, "aot_eager", True),
        (the_module, False, "aot_eager", True),
        pytest.param(the_module, None, "inductor", False, marks=INDUCTOR),
        pytest.param(the_data_parallel, False, "inductor", True, marks=INDUCTOR),
        *(
            pytest.param(way, again, "inductor", as_eager, marks=[INDUCTOR, pytest.mark.release])
            for way in (the_data_parallel, the_module)
            for again in (None, False)
            for as_eager in (False, True)
        ),
    ],
)
def test_one_seed_gives_the_same_bits_compiled(
    way: Callable[..., Any], reentrant: bool | None, backend: str, as_eager: bool
) -> None:
    """Bits are equal from the first pass on, which compiles; with ``as_eager`` to eager mode's."""
    options = {"fallback_random": True} if backend == "inductor" and as_eager else None
    first = repeated(way(Drawing(reentrant), backend=backend, options=options), 5)
    assert equal(first, step(DataParallel(Drawing(reentrant), SLOTS))) == as_eager


class Watch(TorchDispatchMode):
    """Passes every call on."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


class Watched(Delayed):
    """Draws under two dispatch modes of the user, one within the other."""

    def draw(self, x: Any) -> Any:
        with Watch(), Watch():
            return super().draw(x)


class Selective(Delayed):
    """Recomputes all but products in the backward pass; torch keeps these by dispatch modes."""

    def forward(self, x: Any) -> Any:
        kept = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mul.Tensor])
        return checkpoint(self.draw, x, use_reentrant=False, context_fn=kept)


@pytest.mark.parametrize("kind", [Watched, Selective])
def test_one_seed_gives_the_same_bits_under_dispatch_modes(kind: Any) -> None:
    first = step(DataParallel(Delayed(), SLOTS))
    model = DataParallel(kind(), SLOTS)
    assert all(equal(first, step(model)) for _ in range(10))


def test_control_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared generator must show, in bits that differ or in gradients with other masks."""
    no_pass = Mock()
    module = importlib.import_module("fastcomm.nn.parallel.parallel_apply")
    monkeypatch.setattr(module, "begin_pass", lambda: no_pass)
    model = DataParallel(Delayed(False), SLOTS)
    runs = [step(model) for _ in range(30)]
    assert not all(equal(runs[0], run) and torch.equal(run[0], run[1]) for run in runs)


def test_nothing_drawn_leaves_the_state() -> None:
    model = DataParallel(nn.Linear(4, 4), SLOTS)
    before = torch.get_rng_state()
    model(torch.ones(6, 4)).sum().backward()
    assert torch.equal(before, torch.get_rng_state())


def test_one_part_is_as_bare() -> None:
    bare = Delayed()
    torch.manual_seed(1)
    expected = bare(torch.ones(1, 64)), torch.get_rng_state()
    torch.manual_seed(1)
    model = DataParallel(bare, SLOTS)
    assert equal(expected, (model(torch.ones(1, 64)), torch.get_rng_state()))


def test_a_state_replays_a_pass() -> None:
    model = DataParallel(Delayed(), SLOTS)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = model(torch.ones(6, 64)), model(torch.ones(6, 64))
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(first, model(torch.ones(6, 64)))
    assert torch.equal(second, model(torch.ones(6, 64)))


def test_only_a_later_replica_draws() -> None:
    """The caller's generator must move all the same, or the next pass would draw the same."""

    def nothing(x: Any) -> Any:
        return x

    draws = [parallel_apply([nothing, torch.rand_like], [torch.ones(9)] * 2)]
    draws += [parallel_apply([nothing, torch.rand_like], [torch.ones(9)] * 2)]
    assert not torch.equal(draws[0][1], draws[1][1])


def serially(works: Any, x: Any) -> Any:
    """Run a pass by ADR 37, one replica after the other."""
    begin = torch.get_rng_state()
    results = [works[0](x)]
    own = torch.get_rng_state()
    for i, work in list(enumerate(works))[1:]:
        torch.set_rng_state(derived(begin, i))
        results.append(work(x))
    torch.set_rng_state(own)
    return results


LAYERS: list[Callable[[Any], Any]] = [
    lambda x: F.dropout(x, 0.3),
    lambda x: F.rrelu(x, training=True),
    lambda x: x + torch.rand_like(x),
    lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    lambda x: x + torch.randn(x.shape),
    lambda x: x[torch.randperm(len(x))],
    lambda x: x + torch.multinomial(torch.ones(8), 3)[0],
    lambda x: F.alpha_dropout(x, 0.2, training=True),
    lambda x: x + torch.randint(9, x.shape, generator=torch.default_generator),
    lambda x: checkpoint(lambda y: F.dropout(y, 0.5), x, use_reentrant=False),
    lambda x: x.clone().uniform_().add(x),
    lambda x: x + torch.normal(x, 1.0),
    lambda x: x * 2,
]


def check_random_model(seed: int) -> None:
    """Compare outputs and gradients of replicas with those of `serially`."""
    chosen = random.Random(seed)
    layers = [chosen.choice(LAYERS) for _ in range(chosen.randint(1, 6))]

    def work(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    works = [work] * chosen.randint(2, 4)
    x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
    torch.manual_seed(seed)
    expected = serially(works, x)
    torch.manual_seed(seed)
    found = parallel_apply(works, [x] * len(works))
    assert equal(expected, found), seed
    for a, b in zip(expected, found, strict=True):
        (one,), (other,) = (torch.autograd.grad(v.sum(), x, allow_unused=True) for v in (a, b))
        assert one is other is None or torch.equal(one, other), seed


def test_random_models() -> None:
    for seed in range(40):
        check_random_model(seed)


@pytest.mark.release
def test_a_thousand_random_models() -> None:
    for seed in range(1000):
        check_random_model(seed)


class Attends(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return flex_attention(x, x, x)


class Chooses(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("kind", [Attends, Chooses])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_higher_order_operators_run_in_replicas(kind: type[nn.Module]) -> None:
    x = torch.randn(4, 1, 16, 4)
    with torch.no_grad():
        wanted = kind()(x.abs())
        torch.testing.assert_close(DataParallel(kind(), SLOTS)(x.abs()), wanted)


@pytest.mark.usefixtures("fresh")
def test_higher_order_operators_that_come_later_run_in_replicas() -> None:
    parallel_apply([torch.sin] * 2, [torch.ones(1)] * 2)

    class Twice(torch._ops.HigherOrderOperator):
        def __call__(self, x: torch.Tensor) -> Any:
            return super().__call__(x)

    twice = Twice("fastcomm_tests_twice")
    for key in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.AutogradCPU):
        twice.py_impl(key)(lambda x: x * 2)
    results = parallel_apply([twice] * 2, [torch.ones(1)] * 2)
    assert [result.item() for result in results] == [2.0, 2.0]

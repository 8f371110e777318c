"""DistributedDataParallel with fused reductions: bits, norms, clipping, and all modes of DDP."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from support.training import Complex
from torch import nn

import fastcomm
from fastcomm.ddp_comm_hooks import FusedState, fused_hook

Stock = nn.parallel.DistributedDataParallel
Ours = fastcomm.nn.parallel.DistributedDataParallel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])
        self.unused = nn.Linear(5, 5)
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        out: torch.Tensor = self.head(x)
        return out


def _batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if "unused" not in name]


def _train(ddp: Any, rank: int) -> list[torch.Tensor]:
    """Take three steps, and return the parameters."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        ddp(_batch(rank, step)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in ddp.parameters()]


MODES: list[dict[str, Any]] = [
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.02},
    {"static_graph": True},
]


@on_ranks(2)
def test_trains_as_stock_ddp_does(world: World) -> None:
    """With two ranks all bits are equal: halving is exact, before a sum and after it."""
    world.init()
    for mode in MODES:
        stock = Stock(Model(), **mode)
        ours = Ours(Model(), **mode)
        hooked = Stock(Model(), **mode)
        state = FusedState(hooked.parameters())
        hooked.register_comm_hook(state, fused_hook)
        wanted = _train(stock, world.rank)
        for other in (ours, hooked):
            found = _train(other, world.rank)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), mode
        grads = [p.grad for p in _parameters(ours) if p.grad is not None]
        exact = torch.linalg.vector_norm(torch.cat([g.flatten().double() for g in grads]))
        for result in (ours.result(), state.result()):
            assert result.total_norm is not None and result.total_norm.dtype == torch.float32
            assert math.isclose(float(result.total_norm), float(exact), rel_tol=1e-6)
            assert float(result.found_inf) == 0.0
        if mode.get("find_unused_parameters"):
            assert all(p.grad is None for p in ours.module.unused.parameters())


COMPLEX: list[dict[str, Any]] = [{}, {"comm_dtype": torch.bfloat16, "error_feedback": True}]


def _complex(world: World) -> tuple[list[torch.Tensor], float]:
    """Train with complex parameters, whose gradients DDP gives to hooks as real ones."""
    world.init()
    answers: list[tuple[list[torch.Tensor], float]] = []
    for mode in MODES:
        for options in COMPLEX:
            torch.manual_seed(3)
            ddp = Ours(Complex(), max_norm=0.5, **{"bucket_cap_mb": 0.01, **mode}, **options)
            plain = Stock(copy.deepcopy(ddp.module), **mode)
            norms: list[float] = []
            rough = 0.1 if options else 1e-5
            for model in (ddp, plain):
                model.zero_grad()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for step in range(2):
                    optimizer.zero_grad()
                    model(_batch(world.rank, step)[:, :32]).square().mean().backward()
                    if model is plain:
                        # Step 0 counts, too: in it all buckets of a static graph have number 0.
                        norm = nn.utils.clip_grad_norm_(list(model.parameters()), 0.5)
                        assert math.isclose(norms[step], float(norm), rel_tol=rough)
                    else:
                        norms.append(float(ddp.result().total_norm))
                    optimizer.step()
            found = [p.detach().clone() for p in ddp.parameters()]
            limits = {"rtol": 1e-1, "atol": 1e-2} if options else {"rtol": 1e-4, "atol": 1e-6}
            for one, other in zip(found, plain.parameters(), strict=True):
                torch.testing.assert_close(one, other.detach(), **limits)
            norm = ddp.result().total_norm
            assert norm is not None and norm.dtype == torch.float64  # one parameter is complex128
            answers.append((found, float(norm)))
    return [t for found, _ in answers for t in found], sum(norm for _, norm in answers)


def test_complex_parameters_with_and_without_a_native_path() -> None:
    native = run_ranks(2, _complex)
    over_gloo = run_ranks(2, _complex, environment={"FASTCOMM_TRANSPORT": "gloo"})
    for parameters, norm in [*native, *over_gloo]:
        assert norm == native[0][1]
        assert all(torch.equal(a, b) for a, b in zip(parameters, native[0][0], strict=True))


def _any_buckets(world: World) -> tuple[bytes, list[float]]:
    world.init()
    found = []
    for cap in (25, 0.02, 0.001):
        ddp = Ours(Model(), find_unused_parameters=True, bucket_cap_mb=cap)
        weights = _train(ddp, world.rank)
        norm = ddp.result().total_norm
        assert norm is not None
        found.append((b"".join(w.numpy().tobytes() for w in weights), float(norm)))
    assert found[0] == found[1] == found[2]
    return found[0][0], [found[0][1]]


@pytest.mark.parametrize("size", [2, 3])
def test_bits_and_norm_do_not_depend_on_the_buckets_or_the_rank(size: int) -> None:
    answers = run_ranks(size, _any_buckets)
    assert all(answer == answers[0] for answer in answers)
    over_gloo = run_ranks(size, _any_buckets, environment={"FASTCOMM_TRANSPORT": "gloo"})
    assert over_gloo == answers  # without a native path, too


@on_ranks(2)
def test_error_feedback_keeps_what_rounding_takes(world: World) -> None:
    """Gradients add up to fp32's over some steps: residuals keep what rounding took."""
    world.init()
    ddp = Ours(
        Model(),
        find_unused_parameters=True,
        comm_dtype=torch.bfloat16,
        error_feedback=True,
        bucket_cap_mb=0.02,
    )
    without = Ours(Model(), find_unused_parameters=True, comm_dtype=torch.bfloat16)
    exact = Ours(Model(), find_unused_parameters=True)
    summed = []
    for model in (ddp, without, exact):
        total = [torch.zeros_like(p, dtype=torch.float64) for p in _parameters(model)]
        for _ in range(12):
            model.zero_grad()
            model(_batch(world.rank, 0)).square().mean().backward()
            for value, p in zip(total, _parameters(model), strict=True):
                assert p.grad is not None
                value += p.grad.double()
        summed.append(torch.cat([value.flatten() for value in total]))
    error, error_without = ((value - summed[2]).norm() for value in summed[:2])
    # Sums are rounded without a residual: about half of the error remains.
    assert 0 < error < 0.8 * error_without, (error, error_without)


@on_ranks(2)
def test_gradients_are_clipped_when_backward_ends(world: World) -> None:
    world.init()
    ddp = Ours(Model(), find_unused_parameters=True, max_norm=0.01, bucket_cap_mb=0.02)
    free = Ours(Model(), find_unused_parameters=True)
    x = _batch(world.rank, 0)
    for model in (ddp, free):
        model(x).square().mean().backward()
    total = free.result().total_norm
    assert total is not None and float(total) > 0.02 and ddp.result().total_norm == total
    torch.nn.utils.clip_grad_norm_(free.parameters(), 0.01)
    for a, b in zip(_parameters(ddp), _parameters(free), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=0)
    # A norm below max_norm changes no bit.
    loose = Ours(Model(), find_unused_parameters=True, max_norm=2 * float(total))
    free.zero_grad()
    for model in (loose, free):
        model(x).square().mean().backward()
    for a, b in zip(_parameters(loose), _parameters(free), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)


@on_ranks(2)
def test_gradients_that_accumulate_are_reduced_once(world: World) -> None:
    world.init()
    ddp = Ours(Model(), find_unused_parameters=True)
    stock = Stock(Model(), find_unused_parameters=True)
    for model in (ddp, stock):
        with model.no_sync():
            model(_batch(world.rank, 0)).sum().backward()
        if model is ddp:
            with pytest.raises(RuntimeError, match="no backward pass"):
                ddp.result()
        model(_batch(world.rank, 1)).sum().backward()
    for a, b in zip(_parameters(ddp), _parameters(stock), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)


@on_ranks(2)
def test_results_feed_fused_optimizers(world: World) -> None:
    """A fused optimizer clips gradients as it loads them, and skips a step with an infinity."""
    world.init()
    models = [Model().head, Model().head]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, fused=True) for m in models]
    ddp = Ours(models[0])
    stock = Stock(models[1])
    for model in (ddp, stock):
        model(_batch(world.rank, 0)).square().sum().backward()
    ddp.result().feed(optimizers[0], max_norm=0.5)
    torch.nn.utils.clip_grad_norm_(stock.parameters(), 0.5)
    for optimizer in optimizers:
        optimizer.step()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    before = [p.detach().clone() for p in models[0].parameters()]
    models[0].zero_grad()
    ddp(_batch(world.rank, 1) * (math.inf if world.rank else 1.0)).sum().backward()
    result = ddp.result()
    assert float(result.found_inf) == 1.0
    result.feed(optimizers[0])
    optimizers[0].step()
    assert all(torch.equal(a, b) for a, b in zip(before, models[0].parameters(), strict=True))
    with pytest.raises(ValueError, match="fused=True"):
        result.feed(torch.optim.SGD(models[0].parameters(), lr=0.1))


def test_clipping_without_a_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="max_norm needs a norm"):
        FusedState([], max_norm=1.0, norm_type=None)

"""AMP with reductions in the optimizer, in our DDP, in torch's: scales and steps stay equal."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from torch import nn

import fastcomm
from fastcomm import ddp_comm_hooks

STEPS, BAD = 6, 3  # in step BAD one rank's gradients are infinite


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def _loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    loss: torch.Tensor = model(x).square().mean()
    return loss * float("inf") if step == BAD and rank == 1 else loss


def _one_process(size: int) -> tuple[list[torch.Tensor], list[float]]:
    """Train in one process with the mean over ranks, torch's scaler and optimizer."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            scaler.scale(_loss(model, rank, step) / size).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return [p.detach() for p in model.parameters()], scales


def _train(world: World, kind: str) -> tuple[list[torch.Tensor], list[float]]:
    world.init()
    model = _model()
    scaler = fastcomm.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    wrapped: Any = model
    settings: dict[str, Any] = {"lr": 0.5, "momentum": 0.9}
    if kind == "sharded":
        optimizer: Any = fastcomm.optim.ShardedOptimizer(
            model.parameters(), torch.optim.SGD, **settings
        )
    else:
        wrap = fastcomm.nn.parallel.DistributedDataParallel if kind == "ours" else _stock
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), **settings)
    scales = []
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(_loss(wrapped, world.rank, step)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return [p.detach() for p in model.parameters()], scales


def _stock(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["sharded", "ours", "stock"])
def test_ranks_skip_together_and_keep_one_scale(kind: str, size: int) -> None:
    expected, scales = _one_process(size)
    assert scales[BAD] < scales[BAD - 1]  # it was skipped, and what follows grows again
    results = run_ranks(size, _train, kind)
    for parameters, seen in results:
        assert seen == scales
        for parameter, same, value in zip(parameters, results[0][0], expected, strict=True):
            assert torch.equal(parameter, same)
            torch.testing.assert_close(parameter, value)


@on_ranks(2)
def test_torchs_scaler_is_refused_on_every_rank_before_anything_is_sent(world: World) -> None:
    world.init()
    model = _model()
    optimizer = fastcomm.optim.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for unscale in (False, True):
        scaler.scale(_loss(model, world.rank, 0)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        caught = catch(scaler.step, optimizer)
        assert caught.kind == "RuntimeError" and "fastcomm.amp.GradScaler" in caught.text, caught
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    ours = fastcomm.amp.GradScaler("cpu", init_scale=8.0)
    ours.scale(_loss(model, world.rank, 0)).backward()
    caught = catch(ours.unscale_, optimizer)
    assert caught.kind == "RuntimeError" and "max_norm" in caught.text, caught
    assert "Closure" in catch(ours.step, optimizer, lambda: None).text
    ours.step(optimizer)
    assert "already been called" in catch(ours.step, optimizer).text
    ours.update()
    assert dist.get_rank() == world.rank  # the group lives


@pytest.mark.parametrize("is_given", [True, False])
@on_ranks(2)
def test_clipping_is_about_gradients_without_the_scale(world: World, is_given: bool) -> None:
    """If the scaler is given; else it is warned of."""
    world.init()
    model = _model()
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    wrapped = fastcomm.nn.parallel.DistributedDataParallel(
        model, max_norm=0.01, grad_scaler=scaler if is_given else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp_comm_hooks._warn_of_scalers.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        scaler.scale(_loss(wrapped, world.rank, 0)).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert float(norm) == pytest.approx(0.01, rel=1e-4) if is_given else float(norm) < 1e-5
    assert sum("grad_scaler=scaler" in str(one.message) for one in told) == (not is_given)

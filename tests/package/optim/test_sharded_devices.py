"""Optimizers and buckets over devices: failures, empty lists, and groups of one rank."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import init
from support.fused import OPTIONS
from support.on_ranks import on_ranks
from support.patience import SOON
from support.ranks import World, run_outcomes
from support.tree import same_bits
from torch import nn

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")


def _optimizer(device: torch.device, **options: Any) -> fastcomm.optim.ShardedOptimizer:
    """Return an optimizer for two parameters, after a step."""
    given = [torch.ones(6, 5, device=device), torch.ones(3000, device=device)]
    parameters = [nn.Parameter(tensor) for tensor in given]
    optimizer = fastcomm.optim.ShardedOptimizer(parameters, torch.optim.Adam, lr=0.1, **options)
    _give_gradients(optimizer)
    optimizer.step()
    return optimizer


def _give_gradients(optimizer: fastcomm.optim.ShardedOptimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)


def _contents(optimizer: fastcomm.optim.ShardedOptimizer) -> list[float]:
    """Return everything that a step changes on this rank, except gradients."""
    assert optimizer.optimizer is not None
    states = [value for state in optimizer.optimizer.state.values() for value in state.values()]
    tensors = [*optimizer.param_groups[0]["params"], *states]
    return [value for tensor in tensors for value in tensor.detach().flatten().tolist()]


def _left_alone(world: World, how: str) -> tuple[Caught, bool] | None:
    """Return the error of a step that a rank is missing from, and whether anything was changed."""
    optimizer = _optimizer(init(world), skip_nonfinite=how == "skips")
    if world.rank == 1:
        return None
    before = _contents(optimizer)
    _give_gradients(optimizer)
    if how == "scaled":
        caught = catch(optimizer.step_unscaled, 2.0)
    elif how == "skips":
        caught = catch(optimizer.step)
    else:
        caught = catch(lambda: [(optimizer.step(), torch.sim.synchronize()) for _ in range(3)])
    return caught, _contents(optimizer) == before


@pytest.mark.parametrize("how", ["skips", "scaled", "steps"])
def test_a_step_without_all_ranks_is_an_error(how: str) -> None:
    """A step that looks for infinities does not take the error for one, and changes nothing."""
    value = run_outcomes(2, _left_alone, how)[0].value
    assert value is not None
    assert value[0].kind == "PeerLeftError", value
    assert value[1] or how == "steps"


@on_ranks(2)
def test_a_rank_without_gradients_is_an_error_at_once(world: World) -> None:
    optimizer = _optimizer(init(world), skip_nonfinite=True)
    before = _contents(optimizer)
    optimizer.zero_grad()
    optimizer.step()  # without gradients on any rank
    if world.rank == 0:
        _give_gradients(optimizer)
    caught = catch(lambda: [optimizer.step() for _ in range(2)])
    assert caught.kind == "CollectiveMismatchError" and caught.seconds < SOON, caught
    assert _contents(optimizer) == before


def _gathers_alone(world: World) -> list[bool]:
    """Return for each type whether only what a departed rank owns is NaN."""
    device = init(world)
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    dist.all_reduce(torch.ones(1, device=device))
    if world.rank == 1:
        return [True]
    tensors = [torch.ones(1000, dtype=dtype, device=device) for dtype in dtypes]
    fastcomm.gather_shards_(tensors, [[0, 300, 1000]] * 3)
    torch.sim.synchronize()
    assert catch(dist.all_reduce, torch.ones(1, device=device)).kind == "PeerLeftError"
    return [bool(t[300:].isnan().all() and (t[:300] == 1).all()) for t in tensors]


def test_shards_that_did_not_come_are_nan() -> None:
    outcomes = run_outcomes(2, _gathers_alone)
    assert all(outcome.value and all(outcome.value) for outcome in outcomes), outcomes


def _late_call(world: World) -> tuple[float, float, bool, bool]:
    """Return what an asynchronous call gives in a group that has failed."""
    device = init(world)
    dist.all_reduce(torch.ones(1, device=device))
    if world.rank == 1:
        return 1.0, math.nan, True, True
    dist.all_reduce(torch.ones(1, device=device))
    torch.sim.synchronize()
    assert catch(dist.all_reduce, torch.ones(1, device=device)).kind == "PeerLeftError"
    grads = [torch.ones(50, device=device)]
    residuals = [torch.full((50,), 0.25, device=device)]
    result = fastcomm.fused_all_reduce_(
        grads, comm_dtype=torch.bfloat16, residuals=residuals, async_op=True
    )
    raised = catch(result.wait).kind == "PeerLeftError"
    assert result.total_norm is not None
    is_kept = residuals[0].unique().tolist() == [0.25]
    return result.found_inf.item(), result.total_norm.item(), raised, is_kept


def test_a_call_after_a_failure_is_found_by_its_flag() -> None:
    for outcome in run_outcomes(2, _late_call):
        assert outcome.value is not None
        found_inf, norm, raised, is_kept = outcome.value
        assert found_inf == 1.0 and math.isnan(norm) and raised and is_kept


@on_ranks(1)
def test_one_rank_reduces_where_its_gradients_are(world: World) -> None:
    """Check that gradients of one rank stay where they are, with the bits of the CPU."""
    device = init(world)
    for options in OPTIONS:
        torch.manual_seed(3)
        here = [torch.randn(5), torch.randn(3000), torch.randn(0), torch.randn(6, 7).t()]
        there = [torch.empty_like(g, device=device).copy_(g) for g in here]
        left = [[torch.full_like(g, 1e-4) for g in grads] for grads in (here, there)]
        expected = fastcomm.fused_all_reduce_(here, residuals=left[0], **options)
        found = fastcomm.fused_all_reduce_(there, residuals=left[1], **options)
        for mine, theirs in zip([*there, *left[1]], [*here, *left[0]], strict=True):
            assert mine.device == device and same_bits(mine.cpu(), theirs), options
        assert same_bits(found.partial_norms.cpu(), expected.partial_norms)
        assert found.found_inf.item() == expected.found_inf.item()
        assert found.found_inf.device == device


class _Stages(nn.Module):
    """A model on two devices."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 3).to(first)
        self.second = nn.Linear(3, 2).to(second)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        middle = self.first(data.to(self.first.weight.device))
        out: torch.Tensor = self.second(middle.to(self.second.weight.device))
        return out


@on_ranks(2)
def test_ddp_of_a_model_on_two_devices(world: World) -> None:
    """Use buckets on the group's device and on another: norms and clipping cover both."""
    device = init(world)
    dist.all_reduce(torch.ones(1, device=device))
    grads, norms = [], []
    for devices in ((torch.device("cpu"),) * 2, (device, torch.device("sim", 2 + world.rank))):
        model = _Stages(*devices)
        ddp = fastcomm.nn.parallel.DistributedDataParallel(model, max_norm=1e-3)
        torch.manual_seed(world.rank)
        ddp(torch.randn(5, 4)).square().mean().backward()
        grads.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
        total = ddp.result().total_norm
        assert total is not None and total.item() > 1e-3
        norms.append(total.item())
        clipped = math.sqrt(sum(float(g.square().sum()) for g in grads[-1]))
        assert clipped <= 1.001e-3
    assert norms[0] == norms[1]
    assert all(map(same_bits, *grads))

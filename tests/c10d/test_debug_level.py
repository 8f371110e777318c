"""TORCH_DISTRIBUTED_DEBUG=DETAIL: whose errors come out, and what stays the same."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks
from torch import nn

import fastcomm

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
# What goes wrong: our error, and what torch's check says before it.
CASES = {
    "sizes": ("CollectiveMismatchError", "Detected mismatch between collectives on ranks"),
    "operations": ("CollectiveMismatchError", "Detected mismatch between collectives on ranks"),
    "dead": ("PeerLostError", "Ranks 1 failed to pass monitoredBarrier"),
    "left": ("PeerLeftError", "Ranks 1 failed to pass monitoredBarrier"),
    "late": ("CollectiveTimeoutError", "Ranks 1 failed to pass monitoredBarrier"),
    # What torch's check does not look at.
    "reductions": ("CollectiveMismatchError", None),
    "roots": ("CollectiveMismatchError", None),
}


def _init(world: World, raised: str) -> None:
    """Form a group; the level is raised "before" that, as the variable alone does it, or "behind".

    In these processes torch has been imported before the variable is set.
    """
    if raised == "behind":
        world.init()
    if raised != "never":
        dist.set_debug_level_from_env()
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    if raised != "behind":
        world.init()


def _call(case: str, rank: int) -> None:
    tensor = torch.ones(5 if case == "sizes" and rank == 1 else 4)
    if case == "roots" or (case == "operations" and rank == 1):
        dist.broadcast(tensor, rank)
    else:
        average = case == "reductions" and rank == 1
        dist.all_reduce(tensor, dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)


def _go_wrong(world: World, case: str, raised: str) -> Caught | None:
    """Return what a rank gets if it calls at all."""
    _init(world, raised)
    dist.all_reduce(torch.ones(4))
    if world.rank == 1 and case == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank == 1 and case == "late":
        time.sleep(3)
    if world.rank == 1 and case in ("late", "left"):
        dist.destroy_process_group()
        return None
    return catch(_call, case, world.rank)


def _first_error(case: str, raised: str) -> Caught:
    first = run_outcomes(2, _go_wrong, case, raised, environment=DETAIL, group_timeout=2)[0]
    caught: Caught = first.value
    assert caught is not None, first.error
    return caught


@pytest.mark.parametrize("raised", ["never", "behind"])
@pytest.mark.parametrize("case", CASES)
def test_errors_are_ours_where_a_group_is_formed_before(case: str, raised: str) -> None:
    assert _first_error(case, raised).kind == CASES[case][0]


@pytest.mark.parametrize("case", CASES)
def test_errors_of_torch_come_first_where_the_level_is_detail(case: str) -> None:
    ours, theirs = CASES[case]
    caught = _first_error(case, "before")
    if theirs is None:
        assert caught.kind == ours
    else:
        assert "FastcommError" not in caught.bases and theirs in caught.text, caught


def _fused(world: World, raised: str) -> tuple[str, list[torch.Tensor]]:
    """Return what explain() says, and the results of a step and a norm."""
    _init(world, raised)
    torch.manual_seed(world.rank)
    model = nn.Linear(3, 3)
    optimizer = fastcomm.optim.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    ddp = fastcomm.nn.parallel.DistributedDataParallel(model)
    ddp(torch.randn(4, 3)).square().sum().backward()
    norm = ddp.result().total_norm
    assert norm is not None
    said = str(fastcomm.explain("all_reduce", torch.ones(4)))
    return said, [norm, *(p.detach() for p in model.parameters())]


def test_what_is_said_and_computed_is_the_same() -> None:
    plain, checked = (
        run_ranks(2, _fused, raised, environment=DETAIL) for raised in ("never", "before")
    )
    for (said, values), (same, others) in zip(plain, checked, strict=True):
        assert said == same and "native" in said
        assert all(torch.equal(a, b) for a, b in zip(values, others, strict=True))


@on_ranks(2, environment=DETAIL)
def test_a_fused_reduction_does_not_pass_by_the_check(world: World) -> None:
    """Else both would wait for each other: one inside the check, one behind it."""
    _init(world, "before")
    if world.rank == 0:
        caught = catch(fastcomm.fused_all_reduce_, [torch.ones(4)])
    else:
        caught = catch(dist.all_reduce, torch.ones(4))
    assert "Detected mismatch" in caught.text and caught.seconds < SOON, caught

"""Where DistributedDataParallel has its buckets, which does not show in the results."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from support.training import VARIANTS, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import fastcomm

STEPS = 3


def _note(buckets, bucket):  # type: ignore[no-untyped-def]  # torch would refuse annotations that are strings
    buckets.append(fastcomm.is_shared(bucket.buffer()))
    return allreduce_hook(None, bucket)


def _buckets(world: World, view: bool) -> tuple[list[bool], bool, str | None]:
    """Return whether each bucket of three steps and the gradients were shared; DDP's setting."""
    world.init()
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.04, gradient_as_bucket_view=view)
    buckets: list[bool] = []
    ddp.register_comm_hook(buckets, _note)
    for _ in range(STEPS):
        ddp(torch.ones(2, 64)).sum().backward()
    gradients = [fastcomm.is_shared(parameter.grad) for parameter in model.parameters()]
    assert len(set(gradients)) == 1
    return buckets, gradients[0], os.environ.get("DDP_DISABLE_COMM_MEM")


@pytest.mark.parametrize("view", [False, True])
def test_first_and_rebuilt_buckets_are_shared(view: bool) -> None:
    for buckets, gradients, setting in run_ranks(2, _buckets, view):
        assert len(buckets) > STEPS and all(buckets)  # one in the first step, then more
        assert gradients == view
        assert setting == "0"


@pytest.mark.parametrize(
    "environment", [{"DDP_DISABLE_COMM_MEM": "1"}, {"FASTCOMM_TRANSPORT": "gloo"}]
)
def test_no_bucket_is_shared_where_the_user_forbids_it(environment: dict[str, str]) -> None:
    for buckets, gradients, setting in run_ranks(2, _buckets, True, environment=environment):
        assert len(buckets) > STEPS and not any(buckets)
        assert not gradients
        assert setting == environment.get("DDP_DISABLE_COMM_MEM", "0")


@on_ranks(1)
def test_a_group_of_one_rank_shares_nothing(world: World) -> None:
    assert not any(_buckets(world, False)[0])


Result = tuple[list[str], list[torch.Tensor]]
NAMES = ["default", "many buckets", "gradient_as_bucket_view", "bfloat16", "no_sync"]
SMALL_SEGMENT = {"FASTCOMM_SEGMENT_MB": "16"}


def _fill_segment() -> list[torch.Tensor]:
    taken = []
    for size in (1 << 20, 4096):
        with contextlib.suppress(fastcomm.FastcommError):
            while True:
                taken.append(fastcomm.empty(size, dtype=torch.uint8))
    return taken


def _train(world: World, full: tuple[int, ...] = ()) -> tuple[list[Result], str]:
    """Train, some ranks with a full segment; also return what was written to stderr."""
    path = Path(world.directory, f"stderr{world.rank}")
    with path.open("w") as file:
        os.dup2(file.fileno(), 2)  # c10 warns there
    world.init()
    taken = _fill_segment() if world.rank in full else []
    results = []
    for name in NAMES:
        losses, state = train(VARIANTS[name], world.rank)
        results.append(([loss.hex() for loss in losses], [_bits(value) for value in state]))
    dist.barrier()
    assert all(tensor.count_nonzero() == 0 for tensor in taken)
    return results, path.read_text()


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1).view(torch.uint8)


def _same(a: list[Result], b: list[Result]) -> bool:
    return all(
        left[0] == right[0] and all(map(torch.equal, left[1], right[1]))
        for left, right in zip(a, b, strict=True)
    )


def test_training_has_the_same_bits_wherever_the_buckets_are() -> None:
    gloo = run_ranks(2, _train, backend="gloo")
    runs = {
        "shared": run_ranks(2, _train),
        "forbidden": run_ranks(2, _train, environment={"DDP_DISABLE_COMM_MEM": "1"}),
        "no memory": run_ranks(2, _train, (0, 1), environment=SMALL_SEGMENT),
        "none on rank 1": run_ranks(2, _train, (1,), environment=SMALL_SEGMENT),
    }
    warned = {}
    for name, run in runs.items():
        assert all(_same(run[rank][0], gloo[rank][0]) for rank in range(2)), name
        warned[name] = [_warns(said) for _, said in run]
    assert warned == {
        "shared": [False, False],
        "forbidden": [False, False],
        "no memory": [True, True],
        "none on rank 1": [False, True],
    }


def _warns(said: str) -> bool:
    assert "lies in ordinary memory" in said or said == "", said
    return "raise FASTCOMM_SEGMENT_MB" in said

"""torch's own communication hooks under DistributedDataParallel: the results they have elsewhere.

Hooks continue in futures, and some wait in a continuation for another collective. Over Gloo
PowerSGD hangs with more than one bucket under way, as its continuations start in any order: there
buckets are reduced one by one, here with random delays.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from support import comm_hooks
from support.ranks import World, run_outcomes, run_ranks
from support.tree import same_bits

pytestmark = pytest.mark.filterwarnings("ignore:`TorchScript` support for functional optimizers")

QUANTIZED = ("quantized per tensor", "quantized per channel")
POWER_SGD = ("powerSGD", "powerSGD, batched", "powerSGD in fp16")


def _train(world: World, name: str) -> list[torch.Tensor]:
    world.init()
    if world.backend == "gloo":
        return comm_hooks.train(name, comm_hooks.one_by_one)
    return comm_hooks.train(name, lambda hook: comm_hooks.delayed(hook, random.Random(world.rank)))


@pytest.mark.parametrize("name", [name for name in comm_hooks.HOOKS if name not in QUANTIZED])
def test_two_ranks_have_the_bits_of_gloo(name: str) -> None:
    expected = run_ranks(2, _train, name, backend="gloo")
    found = run_ranks(2, _train, name)
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs) == 2 * comm_hooks.BUCKETS
        assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_hooks_end_as_over_gloo(name: str) -> None:
    """Before torch 2.15 they expect NCCL's future of an all_gather, which is one tensor."""
    gloo, own = (run_outcomes(2, _train, name, backend=backend) for backend in ("gloo", "fastcomm"))
    for theirs, ours in zip(gloo, own, strict=True):
        if theirs.error is None:
            assert ours.error is None, ours.error
            assert all(same_bits(a, b) for a, b in zip(ours.value, theirs.value, strict=True))
        else:
            assert ours.error is not None
            texts = (theirs.error, ours.error)
            last = [text.split("RuntimeError: Got")[-1].splitlines()[0] for text in texts]
            assert "IndexError" in last[0]
            assert last[0] == last[1]


def _drive(world: World, name: str) -> list[torch.Tensor]:
    world.init()
    state, hook = comm_hooks.HOOKS[name]()
    dist.barrier()
    return comm_hooks.drive(state, hook, world.rank, random.Random(world.rank))


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("name", POWER_SGD)
def test_power_sgd_sums_in_the_order_of_the_tree(name: str, size: int) -> None:
    found = run_ranks(size, _drive, name)
    for ours, expected in zip(found, comm_hooks.reference(name, size), strict=True):
        assert len(ours) == comm_hooks.STEPS * comm_hooks.BUCKETS
        assert all(same_bits(a, b) for a, b in zip(ours, expected, strict=True))

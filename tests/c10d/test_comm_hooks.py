"""torch's own communication hooks under DistributedDataParallel: the results they have elsewhere.

Hooks continue in futures, and some wait in a continuation for another collective. Over Gloo
PowerSGD hangs with more than one bucket under way, as its continuations start in any order: there
buckets are reduced one by one, here with random delays.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_outcomes, run_ranks
from support.tree import same_bits, tree_sum
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.optim import functional_adam
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.filterwarnings("ignore:`TorchScript` support for functional optimizers")

Hook = Callable[[Any, dist.GradBucket], Any]
Made = tuple[Any, Hook]


def _power_sgd(**options: Any) -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, **options)


def _post_local_sgd() -> Made:
    state = post_localSGD_hook.PostLocalSGDState(None, dist.new_group(), start_localSGD_iter=2)
    return state, post_localSGD_hook.post_localSGD_hook


def _batched_power_sgd() -> Made:
    # torch's hook hands a matrix to a helper that takes batches, and fails over any backend.
    orthogonalize = powerSGD_hook._orthogonalize
    powerSGD_hook._orthogonalize = lambda matrix, epsilon=0: orthogonalize(
        matrix.unsqueeze(0) if matrix.dim() == 2 else matrix, epsilon
    )
    return _power_sgd(), powerSGD_hook.batched_powerSGD_hook


def _overlapped(hook: Hook) -> Hook:
    state = optimizer_overlap_hooks._OptimizerHookState(
        functional_adam._FunctionalAdam([], lr=0.01, _allow_empty_param_list=True)
    )
    return optimizer_overlap_hooks._hook_then_optimizer(hook, state)


HOOKS: dict[str, Callable[[], Made]] = {
    "allreduce": lambda: (None, default_hooks.allreduce_hook),
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "bf16": lambda: (None, default_hooks.bf16_compress_hook),
    "powerSGD": lambda: (_power_sgd(matrix_approximation_rank=2), powerSGD_hook.powerSGD_hook),
    "powerSGD, batched": _batched_power_sgd,
    "powerSGD in fp16": lambda: (
        _power_sgd(),
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ),
    "post-localSGD": _post_local_sgd,
    "quantized per tensor": lambda: (None, quantization_hooks.quantization_pertensor_hook),
    "quantized per channel": lambda: (None, quantization_hooks.quantization_perchannel_hook),
    "noop": lambda: (None, debugging_hooks.noop_hook),
    "optimizer overlapped": lambda: (None, _overlapped(default_hooks.allreduce_hook)),
    "optimizer behind powerSGD": lambda: (_power_sgd(), _overlapped(powerSGD_hook.powerSGD_hook)),
}
QUANTIZED = ("quantized per tensor", "quantized per channel")
POWER_SGD = ("powerSGD", "powerSGD, batched", "powerSGD in fp16")

STEPS = 5
WIDTHS = [45, 44, 45, 44, 45, 44]  # five equal buckets, whose gradients the batched hook must pad


def _delayed(hook: Hook, chance: random.Random) -> Hook:
    """Return the hook, called later by a random time, so that operations end in any order."""

    # Without annotations: DDP compares them with classes, and here they would be strings.
    def late(state, bucket):  # type: ignore[no-untyped-def]
        time.sleep(chance.uniform(0, 0.01))
        return hook(state, bucket)

    return late


def _one_by_one(hook: Hook) -> Hook:
    """Return the hook, which waits for each bucket's result before the next begins."""

    def waiting(state, bucket):  # type: ignore[no-untyped-def]
        future = hook(state, bucket)
        future.wait()
        return future

    return waiting


class _Done:
    def __init__(self, value: list[torch.Tensor]) -> None:
        self._value = value

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._value)
        return future


def _all_reduce_in_the_tree(tensor: torch.Tensor, group: Any, async_op: bool) -> _Done:
    terms = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(terms, tensor, group=group)
    return _Done([tensor.copy_(tree_sum(terms))])


def _train(world: World, name: str) -> list[torch.Tensor]:
    """Train with a hook, each rank on its own data; over Gloo one bucket after another.

    Without NCCL, DDP refuses bfloat16 by the hook's name, which is another here. Returns the last
    gradients and the parameters.
    """
    world.init()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(*each, bias=False) for each in itertools.pairwise(WIDTHS)])
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.004)
    state, hook = HOOKS[name]()
    if world.backend == "fastcomm":
        ddp.register_comm_hook(state, _delayed(hook, random.Random(world.rank)))
    else:
        ddp.register_comm_hook(state, _one_by_one(hook))
        if world.size > 2:
            dist.all_reduce = _all_reduce_in_the_tree
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(world.rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(torch.randn(8, WIDTHS[0], generator=data)).square().mean().backward()
        if "optimizer" not in name:
            optimizer.step()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return grads + [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, 2) for name in HOOKS if name not in QUANTIZED]
    + [(name, 4) for name in POWER_SGD]
    + [("powerSGD", 3)],  # the other two hooks call the same operations
)
def test_hooks_have_the_bits_of_gloo_or_of_the_tree(name: str, size: int) -> None:
    """With more than two ranks Gloo moves the gradients, and they are summed in the tree."""
    expected = run_ranks(size, _train, name, backend="gloo")
    found = run_ranks(size, _train, name)
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs) == 2 * (len(WIDTHS) - 1)
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

"""torch's own communication hooks for DistributedDataParallel, with the state they take."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from support.tree import tree_sum
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

Future = Any
Hook = Callable[[Any, dist.GradBucket], Future]
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
    "powerSGD": lambda: (
        _power_sgd(matrix_approximation_rank=2),
        powerSGD_hook.powerSGD_hook,
    ),
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
    "optimizer behind powerSGD": lambda: (
        _power_sgd(),
        _overlapped(powerSGD_hook.powerSGD_hook),
    ),
}

BUCKETS = 5
STEPS = 5
WIDTH = 45  # gradients that the batched hook must pad


def delayed(hook: Hook, chance: random.Random) -> Hook:
    """Return the hook, called later by a random time, so that operations end in any order."""

    # Without annotations: DDP compares them with classes, and here they would be strings.
    def late(state, bucket):  # type: ignore[no-untyped-def]
        time.sleep(chance.uniform(0, 0.01))
        return hook(state, bucket)

    return late


def one_by_one(hook: Hook) -> Hook:
    """Return the hook, which waits for each bucket's result before the next begins."""

    def waiting(state, bucket):  # type: ignore[no-untyped-def]
        future = hook(state, bucket)
        future.wait()
        return future

    return waiting


def train(name: str, changed: Callable[[Hook], Hook]) -> list[torch.Tensor]:
    """Train a model of five equal buckets with a hook, each rank on its own data.

    Without NCCL, DDP refuses bfloat16 by the hook's name, which `changed` takes away. Returns the
    last gradients and the parameters.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(32, 32, bias=False) for _ in range(BUCKETS)])
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.004)
    state, hook = HOOKS[name]()
    rank = dist.get_rank()
    ddp.register_comm_hook(state, changed(hook))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(torch.randn(8, 32, generator=data)).square().mean().backward()
        if "optimizer" not in name:
            optimizer.step()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None] + [
        p.detach().clone() for p in model.parameters()
    ]


class Bucket:
    """What hooks use of ``dist.GradBucket``."""

    def __init__(self, index: int, values: torch.Tensor) -> None:
        self._index = index
        self._values = values

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._index == BUCKETS - 1

    def buffer(self) -> torch.Tensor:
        return self._values

    def set_buffer(self, values: torch.Tensor) -> None:
        self._values = values

    def gradients(self) -> list[torch.Tensor]:
        return [self._values.view(WIDTH, WIDTH - 1)]


def drive(
    state: Any, hook: Hook, rank: int, chance: random.Random | None = None
) -> list[torch.Tensor]:
    """Call a hook as DDP does, for gradients that differ between ranks, and return its results."""
    draw = torch.Generator().manual_seed(rank)
    results = []
    for _ in range(STEPS):
        futures = []
        for index in range(BUCKETS):
            if chance is not None:
                time.sleep(chance.uniform(0, 0.005))
            values = torch.randn(WIDTH * (WIDTH - 1), generator=draw)
            futures.append(hook(state, Bucket(index, values)))  # type: ignore[arg-type]
        results += [future.wait().clone() for future in futures]
    return results


class _Meeting:
    """Ranks as threads, of which one runs at a time, and what they sum."""

    def __init__(self, size: int) -> None:
        self.turn = threading.Lock()
        self.barrier = threading.Barrier(size)
        self.values: list[torch.Tensor] = [torch.empty(0)] * size

    def wait(self) -> None:
        self.turn.release()
        self.barrier.wait()
        self.turn.acquire()


class _Group:
    """What hooks use of a process group."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.meeting = meeting
        self.rank = rank

    def size(self) -> int:
        return len(self.meeting.values)


class _Done:
    def __init__(self, value: list[torch.Tensor]) -> None:
        self._value = value

    def get_future(self) -> Future:
        future: Future = torch.futures.Future()
        future.set_result(self._value)
        return future


def _all_reduce_in_the_tree(tensor: torch.Tensor, group: _Group, async_op: bool) -> _Done:
    assert async_op
    meeting = group.meeting
    meeting.values[group.rank] = tensor.clone()
    meeting.wait()
    tensor.copy_(tree_sum(meeting.values))
    meeting.wait()
    return _Done([tensor])


def reference(name: str, size: int) -> list[list[torch.Tensor]]:
    """Return what `drive` gives on each rank, with sums in the order of the tree, one at a time."""
    meeting = _Meeting(size)

    def run(rank: int) -> list[torch.Tensor]:
        with meeting.turn:
            state, hook = HOOKS[name]()
            state.process_group = _Group(meeting, rank)
            return drive(state, hook, rank)

    with (
        mock.patch.object(dist, "all_reduce", _all_reduce_in_the_tree),
        mock.patch.object(powerSGD_hook, "_orthogonalize", powerSGD_hook._orthogonalize),
        ThreadPoolExecutor(size) as ranks,
    ):
        return list(ranks.map(run, range(size)))

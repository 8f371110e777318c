"""Times of collectives in the group of a crew, without computation beside them. Collective."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

import fastcomm
from fastcomm._gradients.shards import row_offsets

_WARM_UP = 7
_REPEATS = 21
_MOST_MEMORY = 64 << 20  # of the messages that take turns, so that caches hold none of them


def times_of(sizes: Sequence[int], how: str, device: str) -> dict[int, float]:
    """Return seconds by bytes of float32: the median, of the rank that takes longest.

    Args:
        sizes: bytes, the same on all ranks.
        how: ``"all_reduce"``, or ``"bfloat16"`` for one whose numbers travel in 16 bits, or
            ``"sharded"`` for a reduce_scatter and an all_gather.
        device: type of the messages' device.
    """
    return {size: slowest(_median(size, how, device)) for size in sizes}


def messages_of(size: int, device: str) -> Sequence[torch.Tensor]:
    """Return tensors of so many bytes that take turns."""
    count = max(2, min(8, _MOST_MEMORY // max(1, size)))
    return [torch.zeros(max(1, size // 4), device=device) for _ in range(count)]


def clock(device: str) -> float:
    """Return the seconds of a clock that all processes share, once the device's work is done."""
    if device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def slowest(seconds: float) -> float:
    """Return the most that any rank has: all wait for it."""
    most = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most.item())


def _median(size: int, how: str, device: str) -> float:
    turns = messages_of(size, device)
    call = _CALLS[how]
    times = []
    for number in range(_WARM_UP + _REPEATS):
        dist.barrier()
        begin = clock(device)
        call(turns[number % len(turns)])
        times.append(clock(device) - begin)
    return statistics.median(times[_WARM_UP:])


def _all_reduce(message: torch.Tensor) -> None:
    dist.all_reduce(message)


def _bfloat16(message: torch.Tensor) -> None:
    fastcomm.fused_all_reduce_([message], comm_dtype=torch.bfloat16, norm_type=None)


def _sharded(message: torch.Tensor) -> None:
    offsets = [row_offsets(message, dist.get_world_size())]
    fastcomm.fused_reduce_scatter_([message], offsets, norm_type=None)
    fastcomm.gather_shards_([message], offsets)


_CALLS: dict[str, Callable[[torch.Tensor], None]] = {
    "all_reduce": _all_reduce,
    "bfloat16": _bfloat16,
    "sharded": _sharded,
}

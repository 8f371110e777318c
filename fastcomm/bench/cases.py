"""One entry for each operation: its buffers, the call, an exact check, and how bytes are counted.

Sizes and bus bandwidth follow nccl-tests (its ``doc/PERFORMANCE.md``): algorithm bandwidth is
size / time, bus bandwidth is that times a factor which makes figures comparable between numbers of
ranks n, because it counts what a link has to carry at least:

* all_reduce, all_reduce_shared: 2(n-1)/n; size is the buffer of one rank;
* all_gather, all_gather_into_tensor: (n-1)/n; size is what one rank ends up with, the parts of all
  ranks;
* reduce_scatter_tensor: (n-1)/n; size is what one rank gives, parts for all ranks;
* broadcast: 1; size is the buffer;
* barrier: moves no data.

Values are whole numbers small enough for every sum to be exact in the dtype, so a check compares
for equality and counts the wrong elements.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.distributed as dist

import fastcomm


def pattern(numel: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """What ``rank`` contributes: ``numel`` whole numbers; a shifted or missing chunk shows.

    The period is a prime, so no power-of-two chunk is a copy of its neighbour.  In types of one or
    two bytes the sum over 8 ranks stays within 124, which bfloat16 and int8 hold exactly. Of bool
    each rank has true elements of its own, so that one that is missing shows.
    """
    period = 13 if dtype.itemsize <= 2 else 8191
    numbers = torch.arange(numel, dtype=torch.int64).remainder_(period)
    if dtype == torch.bool:
        return numbers == rank % period
    return numbers.add_(rank).to(dtype)


def pattern_sum(numel: int, dtype: torch.dtype, size: int) -> torch.Tensor:
    """The sum of what ``size`` ranks contribute, rounded or wrapped once; of bool, their "or"."""
    total = torch.zeros(numel, dtype=torch.int64)
    for rank in range(size):
        total += pattern(numel, dtype, rank).to(torch.int64)
    return total.to(dtype)


def count_wrong(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Number of elements that differ."""
    return int(torch.ne(actual, expected).sum())


class Case(ABC):
    """Buffers of one operation at one size, the same memory for every backend.

    Args:
        nbytes: size wished for; ``self.nbytes`` is what came out, at least one element a rank.
        dtype: of the elements.
        rank, size: of the calling process, the same in all groups measured.
    """

    name: ClassVar[str]
    sized: ClassVar[bool] = True

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        self.rank, self.size, self.dtype = rank, size, dtype
        self.numel = max(1, nbytes // dtype.itemsize)
        self.nbytes = self.numel * dtype.itemsize

    @staticmethod
    @abstractmethod
    def bus_factor(size: int) -> float:
        """Bus bandwidth over algorithm bandwidth for ``size`` ranks."""

    @abstractmethod
    def bind(self, group: dist.ProcessGroup) -> Callable[[], object]:
        """The call to measure: blocking, in place on the case's buffers."""

    @abstractmethod
    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        """Run once over ``group`` on known values; the number of wrong elements on this rank.

        ``control`` is another group of the same ranks, for what the check has to exchange.
        """

    def prepare(self) -> None:
        """Fill the buffers for timing: zeros, which stay zeros however often they are summed."""


class AllReduce(Case):
    """``dist.all_reduce`` (SUM)."""

    name = "all_reduce"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffer = torch.empty(self.numel, dtype=dtype)

    @staticmethod
    def bus_factor(size: int) -> float:
        return 2 * (size - 1) / size

    def bind(self, group: dist.ProcessGroup) -> Callable[[], object]:
        buffer = self.buffer
        return lambda: dist.all_reduce(buffer, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.buffer.copy_(pattern(self.numel, self.dtype, self.rank))
        self.bind(group)()
        return count_wrong(self.buffer, pattern_sum(self.numel, self.dtype, self.size))

    def prepare(self) -> None:
        self.buffer.zero_()


class AllReduceShared(AllReduce):
    """The same on a tensor of ``fastcomm.empty``, as the buckets of DDP are."""

    name = "all_reduce_shared"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffer = fastcomm.empty(self.numel, dtype=dtype)


class Broadcast(Case):
    """``dist.broadcast`` from rank 0."""

    name = "broadcast"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffer = torch.empty(self.numel, dtype=dtype)

    @staticmethod
    def bus_factor(size: int) -> float:
        return 1.0

    def bind(self, group: dist.ProcessGroup) -> Callable[[], object]:
        buffer = self.buffer
        return lambda: dist.broadcast(buffer, 0, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.buffer.copy_(pattern(self.numel, self.dtype, self.rank))
        self.bind(group)()
        return count_wrong(self.buffer, pattern(self.numel, self.dtype, 0))

    def prepare(self) -> None:
        self.buffer.zero_()


class AllGather(Case):
    """``dist.all_gather`` into a list of separate tensors; the size is split among the ranks."""

    name = "all_gather"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes // size, dtype, rank, size)
        self.nbytes *= size
        self.part = torch.empty(self.numel, dtype=dtype)
        self.parts = [torch.empty(self.numel, dtype=dtype) for _ in range(size)]

    @staticmethod
    def bus_factor(size: int) -> float:
        return (size - 1) / size

    def bind(self, group: dist.ProcessGroup) -> Callable[[], object]:
        part, parts = self.part, self.parts
        return lambda: dist.all_gather(parts, part, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.part.copy_(pattern(self.numel, self.dtype, self.rank))
        for part in self.parts:
            part.fill_(99)
        self.bind(group)()
        return sum(
            count_wrong(part, pattern(self.numel, self.dtype, rank))
            for rank, part in enumerate(self.parts)
        )

    def prepare(self) -> None:
        self.part.zero_()


class AllGatherIntoTensor(Case):
    """``dist.all_gather_into_tensor``; the size is that of the output."""

    name = "all_gather_into_tensor"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes // size, dtype, rank, size)
        self.nbytes *= size
        self.part = torch.empty(self.numel, dtype=dtype)
        self.whole = torch.empty(size * self.numel, dtype=dtype)

    @staticmethod
    def bus_factor(size: int) -> float:
        return (size - 1) / size

    def bind(self, group: dist.ProcessGroup) -> Callable[[], object]:
        part, whole = self.part, self.whole
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.part.copy_(pattern(self.numel, self.dtype, self.rank))
        self.whole.fill_(99)
        self.bind(group)()
        parts = [pattern(self.numel, self.dtype, rank) for rank in range(self.size)]
        return count_wrong(self.whole, torch.cat(parts))

    def prepare(self) -> None:
        self.part.zero_()


class ReduceScatterTensor(Case):
    """``dist.reduce_scatter_tensor`` (SUM); the size is that of the input."""

    name = "reduce_scatter_tensor"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes // size, dtype, rank, size)
        self.nbytes *= size
        self.whole = torch.empty(size * self.numel, dtype=dtype)
        self.part = torch.empty(self.numel, dtype=dtype)

    @staticmethod
    def bus_factor(size: int) -> float:
        return (size - 1) / size

    def bind(self, group: dist.ProcessGroup) -> Callable[[], object]:
        part, whole = self.part, self.whole
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.whole.copy_(pattern(self.size * self.numel, self.dtype, self.rank))
        self.part.fill_(99)
        self.bind(group)()
        sums = pattern_sum(self.size * self.numel, self.dtype, self.size)
        return count_wrong(self.part, sums.view(self.size, -1)[self.rank])

    def prepare(self) -> None:
        self.whole.zero_()


class Barrier(Case):
    """``dist.barrier``; it has no size."""

    name = "barrier"
    sized = False

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.nbytes = self.numel = 0

    @staticmethod
    def bus_factor(size: int) -> float:
        return 0.0

    def bind(self, group: dist.ProcessGroup) -> Callable[[], object]:
        return lambda: dist.barrier(group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        # The monotonic clock is one for the whole machine: nobody may leave before the last came.
        time.sleep(0.002 * self.rank)
        came = torch.tensor([time.monotonic_ns()])
        self.bind(group)()
        left = time.monotonic_ns()
        dist.all_reduce(came, dist.ReduceOp.MAX, group=control)
        return int(left < int(came))


CASES: dict[str, type[Case]] = {
    case.name: case
    for case in (
        AllReduce,
        AllReduceShared,
        Broadcast,
        AllGather,
        AllGatherIntoTensor,
        ReduceScatterTensor,
        Barrier,
    )
}

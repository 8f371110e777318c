"""all_reduce, reduce, reduce_scatter and reduce_scatter_tensor, by any reduction."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fastcomm._measure.cases.base import (
    REDUCTIONS,
    Call,
    Case,
    PartsCase,
    count_wrong,
    operands,
    reduce_scatter_single,
    reduced,
)


class AllReduce(Case):
    """``dist.all_reduce``."""

    name = "all_reduce"
    reduces = True

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffer = self.empty(self.numel)

    @staticmethod
    def bus_factor(size: int) -> float:
        return 2 * (size - 1) / size

    def bind(self, group: dist.ProcessGroup) -> Call:
        buffer, op = self.buffer, REDUCTIONS[self.reduction]
        return lambda: dist.all_reduce(buffer, op, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.buffer.copy_(operands(self.numel, self.dtype, self.rank, self.reduction))
        self.bind(group)()
        wanted = reduced(self.numel, self.dtype, self.size, self.reduction)
        return count_wrong(self.buffer, wanted)

    def prepare(self) -> None:
        self.buffer.zero_()


class AllReduceShared(AllReduce):
    """The same on a tensor of ``fastcomm.empty``, as the buckets of DDP are."""

    name = "all_reduce_shared"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffer = self.shared(self.numel)


class Reduce(AllReduce):
    """``dist.reduce`` to rank 0."""

    name = "reduce"

    @staticmethod
    def bus_factor(size: int) -> float:
        return 1.0

    def bind(self, group: dist.ProcessGroup) -> Call:
        buffer, op = self.buffer, REDUCTIONS[self.reduction]
        return lambda: dist.reduce(buffer, 0, op, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        wrong = super().check(group, control)
        return wrong if self.rank == 0 else 0  # what the others hold is not specified


class ReduceScatterTensor(PartsCase):
    """``dist.reduce_scatter_tensor``."""

    name = "reduce_scatter_tensor"
    reduces = True

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.whole = self.empty(size * self.numel)
        self.part = self.empty(self.numel)

    def bind(self, group: dist.ProcessGroup) -> Call:
        part, whole, op = self.part, self.whole, REDUCTIONS[self.reduction]
        return lambda: reduce_scatter_single(part, whole, op, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        given = operands(self.size * self.numel, self.dtype, self.rank, self.reduction)
        self.part.fill_(99)
        self.whole.copy_(given)  # last, for the part may be one of its
        self.bind(group)()
        return count_wrong(self.part, self.own_results())

    def prepare(self) -> None:
        self.whole.zero_()


class ReduceScatter(ReduceScatterTensor):
    """``dist.reduce_scatter`` from a list of parts."""

    name = "reduce_scatter"

    def bind(self, group: dist.ProcessGroup) -> Call:
        part, parts = self.part, list(self.whole.chunk(self.size))
        op = REDUCTIONS[self.reduction]
        return lambda: dist.reduce_scatter(part, parts, op, group=group)


class ReduceScatterTensorInPlace(ReduceScatterTensor):
    """The same with the result over this rank's part of what it gives."""

    name = "reduce_scatter_tensor_in_place"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.part = self.whole.chunk(size)[rank]

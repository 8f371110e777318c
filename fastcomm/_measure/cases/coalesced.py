"""Several tensors in one call; the size is that of all of them.

Called as ``dist.all_reduce_coalesced``, the coalescing manager and the functional collectives do.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    ReduceScatterOptions,
)

from fastcomm._measure.cases.base import Call, Case, PartsCase, count_wrong, pattern, pattern_sum

TENSORS = 16


def _wait(work: dist.Work | None) -> None:
    if work is not None:  # a backend may return nothing of a call that was to block
        work.wait()


class AllReduceCoalesced(Case):
    """``dist.all_reduce_coalesced`` (SUM)."""

    name = "all_reduce_coalesced"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes // TENSORS, dtype, rank, size)
        self.nbytes *= TENSORS
        self.buffers = [self.empty(self.numel) for _ in range(TENSORS)]

    @staticmethod
    def bus_factor(size: int) -> float:
        return 2 * (size - 1) / size

    def bind(self, group: dist.ProcessGroup) -> Call:
        buffers = self.buffers
        options = AllreduceCoalescedOptions()
        options.asyncOp = False
        return lambda: _wait(group.allreduce_coalesced(buffers, options))

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        whole = pattern(TENSORS * self.numel, self.dtype, self.rank)
        for buffer, given in zip(self.buffers, whole.chunk(TENSORS), strict=True):
            buffer.copy_(given)
        self.bind(group)()
        sums = pattern_sum(TENSORS * self.numel, self.dtype, self.size)
        return count_wrong(torch.cat(self.buffers), sums)

    def prepare(self) -> None:
        for buffer in self.buffers:
            buffer.zero_()


class _Parts(PartsCase):
    """Tensors of one part, and tensors of a part for each rank."""

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes // TENSORS, dtype, rank, size)
        self.nbytes *= TENSORS
        self.parts = [self.empty(self.numel) for _ in range(TENSORS)]
        self.wholes = [self.empty(size * self.numel) for _ in range(TENSORS)]

    def given(self, rank: int, parts: int) -> torch.Tensor:
        """Return the input of ``rank``: a row for each tensor."""
        return pattern(TENSORS * parts * self.numel, self.dtype, rank).view(TENSORS, -1)

    def prepare(self) -> None:
        for tensor in (*self.parts, *self.wholes):
            tensor.zero_()


class AllGatherIntoTensorCoalesced(_Parts):
    """``all_gather_into_tensor`` under the coalescing manager."""

    name = "all_gather_into_tensor_coalesced"

    def bind(self, group: dist.ProcessGroup) -> Call:
        parts, wholes = self.parts, self.wholes
        options = AllgatherOptions()
        options.asyncOp = False
        return lambda: _wait(group.allgather_into_tensor_coalesced(wholes, parts, options))

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        for part, given in zip(self.parts, self.given(self.rank, 1), strict=True):
            part.copy_(given)
        for whole in self.wholes:
            whole.fill_(99)
        self.bind(group)()
        taken = torch.stack(self.wholes).view(TENSORS, self.size, -1)
        return sum(count_wrong(taken[:, rank], self.given(rank, 1)) for rank in range(self.size))


class AllGatherCoalesced(AllGatherIntoTensorCoalesced):
    """``dist.all_gather_coalesced``: a list of outputs for each rank."""

    name = "all_gather_coalesced"

    def bind(self, group: dist.ProcessGroup) -> Call:
        of_tensors = (whole.chunk(self.size) for whole in self.wholes)
        parts, lists = self.parts, [list(of_rank) for of_rank in zip(*of_tensors, strict=True)]
        options = AllgatherOptions()
        options.asyncOp = False
        return lambda: _wait(group.allgather_coalesced(lists, parts, options))


class ReduceScatterTensorCoalesced(_Parts):
    """``reduce_scatter_tensor`` (SUM) under the coalescing manager."""

    name = "reduce_scatter_tensor_coalesced"

    def bind(self, group: dist.ProcessGroup) -> Call:
        parts, wholes = self.parts, self.wholes
        options = ReduceScatterOptions()
        options.asyncOp = False
        return lambda: _wait(group.reduce_scatter_tensor_coalesced(parts, wholes, options))

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        for whole, given in zip(self.wholes, self.given(self.rank, self.size), strict=True):
            whole.copy_(given)
        for part in self.parts:
            part.fill_(99)
        self.bind(group)()
        sums = pattern_sum(TENSORS * self.size * self.numel, self.dtype, self.size)
        wanted = sums.view(TENSORS, self.size, -1)[:, self.rank]
        return count_wrong(torch.stack(self.parts), wanted)

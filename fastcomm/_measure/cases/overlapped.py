"""all_reduce that is not waited for at once: several in flight, or beside a computation."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fastcomm._measure.cases.base import Call, count_wrong, operands, reduced
from fastcomm._measure.cases.reductions import AllReduce


class AllReduceAsync(AllReduce):
    """Eight buffers with ``async_op=True``, then ``wait()`` of each; the time is that of one."""

    name = "all_reduce_async"
    repeats = 8
    reduces = False

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffers = [self.buffer, *(self.empty(self.numel) for _ in range(self.repeats - 1))]

    def bind(self, group: dist.ProcessGroup) -> Call:
        buffers = self.buffers

        def call() -> None:
            works = [dist.all_reduce(buffer, group=group, async_op=True) for buffer in buffers]
            for work in works:
                work.wait()

        return call

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        for buffer in self.buffers:
            buffer.copy_(operands(self.numel, self.dtype, self.rank, "sum"))
        self.bind(group)()
        wanted = reduced(self.numel, self.dtype, self.size, "sum")
        return sum(count_wrong(buffer, wanted) for buffer in self.buffers)

    def prepare(self) -> None:
        for buffer in self.buffers:
            buffer.zero_()


class AllReduceOverlapped(AllReduce):
    """One with ``async_op=True``, a computation, and ``wait()``; the time is that of all three.

    The computation is products of matrices of float32, one of 128x128 for each 256 KiB. What it
    takes alone is the time over the backend ``fake``, and what that lacks to another's is exposed.
    """

    name = "all_reduce_overlapped"
    reduces = False
    WIDTH, BYTES = 128, 256 * 1024

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.matrix = torch.ones(self.WIDTH, self.WIDTH, device=self.buffer.device)
        self.product = torch.empty_like(self.matrix)
        self.products = -(-self.nbytes // self.BYTES)

    def bind(self, group: dist.ProcessGroup) -> Call:
        buffer, matrix, product = self.buffer, self.matrix, self.product

        def call() -> None:
            work = dist.all_reduce(buffer, group=group, async_op=True)
            for _ in range(self.products):
                torch.mm(matrix, matrix, out=product)
            work.wait()

        return call

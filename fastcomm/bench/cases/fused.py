"""A list of gradients reduced: fastcomm's one pass, and the steps that stock code takes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

import fastcomm
from fastcomm.bench.cases.base import Call, Case, count_wrong, pattern, pattern_sum

TENSORS = 16


class FusedAllReduce(Case):
    """``fastcomm.fused_all_reduce_`` of 16 tensors: their sums, and the norm of these.

    Over any other backend in the steps of stock code: flatten, all_reduce, copy back, norm.
    """

    name = "fused_all_reduce"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes // TENSORS, dtype, rank, size)
        self.nbytes *= TENSORS
        self.buffers = [self.empty(self.numel) for _ in range(TENSORS)]

    @staticmethod
    def bus_factor(size: int) -> float:
        return 2 * (size - 1) / size

    def why_not(self) -> str:
        of_numbers = self.dtype.is_floating_point or self.dtype.is_complex
        return "" if of_numbers else "gradients are no integers"

    def bind(self, group: dist.ProcessGroup) -> Call:
        buffers = self.buffers
        if "fastcomm" in dist.get_backend_config(group):
            return lambda: fastcomm.fused_all_reduce_(buffers, group, average=False)

        def stock() -> torch.Tensor:
            flat = _flatten_dense_tensors(buffers)
            dist.all_reduce(flat, group=group)
            torch._foreach_copy_(buffers, list(_unflatten_dense_tensors(flat, buffers)))
            return torch.nn.utils.get_total_norm(buffers)

        return stock

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

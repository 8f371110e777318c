"""A list of gradients reduced: fastcomm's one pass, and the steps that stock code takes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

import fastcomm
from fastcomm._measure.cases.base import Call
from fastcomm._measure.cases.coalesced import AllReduceCoalesced


class FusedAllReduce(AllReduceCoalesced):
    """``fastcomm.fused_all_reduce_`` of as many tensors: their sums, and the norm of these.

    Over any other backend in the steps of stock code: flatten, all_reduce, copy back, norm.
    """

    name = "fused_all_reduce"

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

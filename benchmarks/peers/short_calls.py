"""fastcomm without torch's own layers: its operators, prepared calls, and what a call costs alone.

``operator-empty`` is an operator of the same signature that does nothing: torch's own price.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import fastcomm
from fastcomm._measure.cases import Case
from fastcomm._measure.contenders import NotServedError
from peers.peer import Peer

# Of a case: its buffers, outputs first.
_BUFFERS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("buffer",),
    "broadcast": ("buffer",),
    "all_gather_into_tensor": ("whole", "part"),
    "reduce_scatter_tensor": ("part", "whole"),
    "barrier": (),
}


def _buffers_of(case: Case) -> list[Any]:
    if case.name not in _BUFFERS:
        raise NotServedError(f"no short call of {case.name}")
    return [getattr(case, each) for each in _BUFFERS[case.name]]


class Prepared(Peer):
    """``fastcomm.prepare``: arguments are given once."""

    def __init__(self, label: str, control: dist.ProcessGroup) -> None:
        super().__init__(label, control)
        self.own: dist.ProcessGroup = dist.new_group(backend="fastcomm")

    def call_of(self, case: Case) -> Callable[[], object]:
        return fastcomm.prepare(
            case.name,
            *_buffers_of(case),
            op=case.reduction if case.reduces else "sum",
            group_src=0 if case.name == "broadcast" else None,
            group=self.own,
        )


class Operator(Prepared):
    """``torch.ops.fastcomm``: ``all_reduce_`` and its kin, from Python."""

    def call_of(self, case: Case) -> Callable[[], object]:
        tensors, operators, name = _buffers_of(case), torch.ops.fastcomm, self.own.group_name
        if case.name == "barrier":
            barrier = operators.barrier.default
            return lambda: barrier(name)
        if case.name == "broadcast":
            broadcast, buffer = operators.broadcast_.default, tensors[0]
            return lambda: broadcast(buffer, 0, name)
        if case.name == "all_gather_into_tensor":
            gather, (whole, part) = operators.all_gather_into.default, tensors
            return lambda: gather(whole, part, name)
        op = case.reduction
        if case.name == "reduce_scatter_tensor":
            scatter, (part, whole) = operators.reduce_scatter_into.default, tensors
            return lambda: scatter(part, whole, name, op)
        reduce, buffer = operators.all_reduce_.default, tensors[0]
        return lambda: reduce(buffer, name, op)


class OperatorEmpty(Prepared):
    """What an operator costs that does nothing: nobody waits for anybody."""

    def call_of(self, case: Case) -> Callable[[], object]:
        if case.name != "all_reduce":
            raise NotServedError(f"no empty operator for {case.name}")
        nothing, words, name = torch.ops.fastcomm._nothing_.default, _buffers_of(case), "0"
        buffer = words[0]
        return lambda: nothing(buffer, name)

    def check(self, case: Case, control: dist.ProcessGroup) -> int:
        self.call_of(case)
        return 0

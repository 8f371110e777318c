"""Rules for tracing and differentiating the collectives of csrc/c10d/edge/library.cpp.

``torch.ops.fastcomm.all_reduce_(tensor, group_name)`` and its kin write where they are told;
``all_reduce(tensor, group_name)`` and its kin return results of their own, which are differentiable
as those of ``torch.distributed.nn.functional``: every rank computes a loss, and gradients are those
of the sum of all losses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _native
from fastcomm._distributed import graph_order

_native.load()

OPERATORS = torch.ops.fastcomm
Splits = Sequence[int] | None


def _collective(name: str) -> Callable[[Callable[..., Any]], None]:
    """Register what an operator returns when it is traced, and that it is a collective.

    That is one on every rank: it is not left out where a rank does not read its result, and keeps
    its place among the others.
    """
    operator = getattr(OPERATORS, name).default

    def register(fake: Callable[..., Any]) -> None:
        @functools.wraps(fake)
        def traced(*arguments: Any, **options: Any) -> Any:
            graph_order.while_tracing()
            return fake(*arguments, **options)

        torch.library.register_fake(f"fastcomm::{name}", traced)
        graph_order.keep_order(operator)

    return register


def _size(group_name: str) -> int:
    size: int = dist.distributed_c10d._resolve_process_group(group_name).size()
    return size


def _rank(group_name: str) -> int:
    rank: int = dist.distributed_c10d._resolve_process_group(group_name).rank()
    return rank


@_collective("all_reduce_")
def _(tensor: torch.Tensor, group_name: str, op: str = "sum") -> None:
    return None


@_collective("all_reduce_add_rms_norm_")
def _(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group_name: str
) -> None:
    # A compiled graph would take the results for constants.
    if torch.is_grad_enabled() and any(each.requires_grad for each in (x, residual, weight)):
        raise RuntimeError(
            "all_reduce_add_rms_norm_: there is no derivative; call it under torch.no_grad()"
        )


@_collective("all_gather_into")
def _(output: torch.Tensor, tensor: torch.Tensor, group_name: str) -> None:
    return None


@_collective("reduce_scatter_into")
def _(output: torch.Tensor, tensor: torch.Tensor, group_name: str, op: str = "sum") -> None:
    return None


@_collective("broadcast_")
def _(tensor: torch.Tensor, group_src: int, group_name: str) -> None:
    return None


@_collective("all_to_all_into")
def _(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_splits: Splits,
    input_splits: Splits,
    group_name: str,
) -> None:
    return None


@_collective("barrier")
def _(group_name: str) -> None:
    # Without it, nothing of the arguments would be made up, and a traced call would be a real one.
    return None


@_collective("all_reduce")
def _(tensor: torch.Tensor, group_name: str, op: str = "sum") -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@_collective("all_gather")
def _(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    return tensor.new_empty((_size(group_name) * tensor.shape[0], *tensor.shape[1:]))


@_collective("reduce_scatter")
def _(tensor: torch.Tensor, group_name: str, op: str = "sum") -> torch.Tensor:
    return tensor.new_empty((tensor.shape[0] // _size(group_name), *tensor.shape[1:]))


@_collective("broadcast")
def _(tensor: torch.Tensor, group_src: int, group_name: str) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@_collective("all_to_all")
def _(
    tensor: torch.Tensor, output_splits: Splits, input_splits: Splits, group_name: str
) -> torch.Tensor:
    rows = tensor.shape[0] if output_splits is None else sum(output_splits)
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _remember_reduction(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.group_name, ctx.op = inputs
    if ctx.op not in ("sum", "avg"):
        ctx.set_materialize_grads(False)


def _only_linear(ctx: Any) -> None:
    if ctx.op not in ("sum", "avg"):
        raise RuntimeError(f"op={ctx.op!r} has no derivative; 'sum' and 'avg' have")


def _derive_all_reduce(ctx: Any, grad: torch.Tensor) -> Any:
    _only_linear(ctx)
    return OPERATORS.all_reduce(grad, ctx.group_name, ctx.op), None, None


def _derive_reduce_scatter(ctx: Any, grad: torch.Tensor) -> Any:
    _only_linear(ctx)
    gathered = OPERATORS.all_gather(grad, ctx.group_name)
    return gathered if ctx.op == "sum" else gathered / _size(ctx.group_name), None, None


def _remember_group(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *_, ctx.group_name = inputs


def _derive_all_gather(ctx: Any, grad: torch.Tensor) -> Any:
    return OPERATORS.reduce_scatter(grad, ctx.group_name, "sum"), None


def _remember_broadcast(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.group_src, ctx.group_name = inputs


def _derive_broadcast(ctx: Any, grad: torch.Tensor) -> Any:
    total = OPERATORS.all_reduce(grad, ctx.group_name, "sum")
    is_root = _rank(ctx.group_name) == ctx.group_src
    return total if is_root else torch.zeros_like(total), None, None


def _remember_splits(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.output_splits, ctx.input_splits, ctx.group_name = inputs


def _derive_all_to_all(ctx: Any, grad: torch.Tensor) -> Any:
    back = OPERATORS.all_to_all(grad, ctx.input_splits, ctx.output_splits, ctx.group_name)
    return back, None, None, None


for _name, _derive, _remember in (
    ("all_reduce", _derive_all_reduce, _remember_reduction),
    ("reduce_scatter", _derive_reduce_scatter, _remember_reduction),
    ("all_gather", _derive_all_gather, _remember_group),
    ("broadcast", _derive_broadcast, _remember_broadcast),
    ("all_to_all", _derive_all_to_all, _remember_splits),
):
    torch.library.register_autograd(f"fastcomm::{_name}", _derive, setup_context=_remember)

"""Lists of tensors copied and summed: natively where all is plain memory, else by torch."""

from __future__ import annotations

from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from fastcomm import _native
from fastcomm._devices import streams as _streams
from fastcomm._devices.slots import CPU, index_of, served


def copies(tensors: list[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    """Return ``count`` copies of the tensors in the CPU's memory."""
    if count == 0:
        return []
    if torch.compiler.is_compiling():
        flat = _operators().broadcast_coalesced(tensors, [-1] * count)
        return [flat[i * len(tensors) : (i + 1) * len(tensors)] for i in range(count)]
    plain = [value.layout == torch.strided and value.device == CPU for value in tensors]
    chosen = [value for value, fast in zip(tensors, plain, strict=True) if fast]
    lists = _native.load().copy_lists(chosen, count)
    if lists is None:
        return [[detached_copy(value, CPU) for value in tensors] for _ in range(count)]
    iterators = [iter(values) for values in lists]
    return [
        [
            next(values) if fast else detached_copy(value, CPU)
            for value, fast in zip(tensors, plain, strict=True)
        ]
        for values in iterators
    ]


def device_copies(
    tensors: list[torch.Tensor], targets: list[torch.device]
) -> list[list[torch.Tensor]] | None:
    """Return copies on the devices after the first, which has the tensors.

    None where our kernels cannot: then torch does it.
    """
    kind = _served()
    if any(target.type != kind for target in targets):
        return None
    indices = [index_of(target) for target in targets]
    if torch.compiler.is_compiling():
        flat = _operators().broadcast_coalesced(tensors, indices[1:])
        return [flat[i : i + len(tensors)] for i in range(0, len(flat), len(tensors))]
    lists: list[list[torch.Tensor]] | None
    lists = _native.load().copy_device_lists(tensors, indices)
    return lists


def send(sources: list[torch.Tensor], destinations: list[torch.Tensor]) -> bool:
    """Copy each tensor to the place of the other list, where one of the lists is on one device.

    False, with nothing done, where our kernels cannot: torch does it then. Autograd sees nothing.
    """
    if torch.compiler.is_compiling() or not sources:
        return False
    if any(value.device.type != served() for value in [*sources, *destinations]):
        return False
    if torch.is_grad_enabled() and any(v.requires_grad for v in [*sources, *destinations]):
        return False
    return bool(_native.load().send_device_list(sources, destinations))


def detached_copy(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    return tensor.detach().to(target, copy=True)


def sums(lists: list[list[torch.Tensor]], target: torch.device) -> list[torch.Tensor]:
    """Return the sums of dense tensors, place by place, not differentiable."""
    if not lists or not lists[0]:
        return []
    totals: list[torch.Tensor] | None = None
    kind, ours = target.type, _served()
    if all(value.device.type == kind for values in lists for value in values):
        if torch.compiler.is_compiling() and kind in ("cpu", ours):
            flat = [value for values in lists for value in values]
            totals = _operators().reduce_add_coalesced(flat, len(lists), index_of(target))
        elif kind == "cpu":
            totals = _native.load().sum_lists(lists)
        elif kind == ours:
            totals = _native.load().sum_device_lists(lists, index_of(target))
    return sums_of_flat(lists, target) if totals is None else totals


def sums_of_flat(lists: list[list[torch.Tensor]], target: torch.device) -> list[torch.Tensor]:
    """Return the sums by torch's own functions: a flat tensor for each device and dtype."""
    result: dict[int, torch.Tensor] = {}
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i, value in enumerate(lists[0] if lists else ()):
        by_dtype.setdefault(value.dtype, []).append(i)
    with torch.no_grad():
        for places in by_dtype.values():
            columns = [[values[i] for i in places] for values in lists]
            for column in columns:
                _streams.use(column)
            total = tree_sum([_flatten_dense_tensors(column) for column in columns], target)
            parts = _unflatten_dense_tensors(total, columns[0])
            result.update((i, part.data) for i, part in zip(places, parts, strict=True))
    return [result[i] for i in range(len(result))]


def tree_sum(terms: list[torch.Tensor], target: torch.device) -> torch.Tensor:
    """Return the differentiable sum in the order of the tree, rounded once."""
    dtype = terms[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    terms = [value.to(target, wide, non_blocking=target != CPU) for value in terms]
    while len(terms) > 1:
        odd = [terms[-1]] if len(terms) % 2 else []
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + odd
    return terms[0].to(dtype)


def _served() -> str:
    if not torch.compiler.is_compiling():
        return served()
    kind: str = _constants().SERVED  # traced code must not ask the library
    return kind


def _operators() -> Any:
    return _constants().OPERATORS


def _constants() -> Any:
    from fastcomm._devices import operators as _operators

    return _operators

"""Lists of tensors copied and summed: natively where all is plain memory, else by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from fastcomm import _native
from fastcomm._devices import streams as _streams
from fastcomm._devices.slots import CPU, index_of, served


def copies(
    tensors: list[torch.Tensor], targets: Sequence[torch.device]
) -> list[list[torch.Tensor]] | None:
    """Return copies of tensors that lie on the first target: a list for each of the other targets.

    Return None, with nothing done, if torch has to copy (csrc/ops/list_routes.h).
    """
    kinds = ("cpu", _served())
    if any(target.type not in kinds for target in targets):
        return None
    indices = [index_of(target) for target in targets]
    if torch.compiler.is_compiling():
        flat, count = _operators().broadcast_coalesced(tensors, indices[1:]), len(tensors)
        return [flat[i * count : (i + 1) * count] for i in range(len(indices) - 1)]
    made: list[list[torch.Tensor]] | None = _native.load().copy_lists(tensors, indices)
    return made


def mixed_copies(tensors: list[torch.Tensor], target: torch.device) -> list[torch.Tensor]:
    """Return copies on the target: by our loops for dense tensors within the CPU, else by torch."""

    def is_plain(value: torch.Tensor) -> bool:
        return bool(value.layout == torch.strided and value.device == target == CPU)

    made = copies([value for value in tensors if is_plain(value)], [CPU, CPU])
    ours = iter(made[0] if made else [])
    return [
        next(ours) if made and is_plain(value) else detached_copy(value, target)
        for value in tensors
    ]


def send(sources: list[torch.Tensor], destinations: list[torch.Tensor]) -> bool:
    """Copy each source to the destination of the same index, if one list is all on one device.

    Return False, with nothing done, where torch has to copy. Autograd does not record the copies.
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
    """Return the sums of dense tensors over the lists, index by index, on the target.

    Eager calls are not differentiable.
    """
    if not lists or not lists[0]:
        return []
    totals: list[torch.Tensor] | None = None
    kind = target.type
    if kind in ("cpu", _served()) and all(
        v.device.type == kind for values in lists for v in values
    ):
        if torch.compiler.is_compiling():
            flat = [value for values in lists for value in values]
            totals = _operators().reduce_add_coalesced(flat, len(lists), index_of(target))
        else:
            totals = _native.load().sum_lists(lists, index_of(target))
    return sums_of_flat(lists, target) if totals is None else totals


def sums_of_flat(lists: list[list[torch.Tensor]], target: torch.device) -> list[torch.Tensor]:
    """Return the sums by torch's own functions: one flat tensor for each list and dtype."""
    result: dict[int, torch.Tensor] = {}
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i, value in enumerate(lists[0] if lists else ()):
        by_dtype.setdefault(value.dtype, []).append(i)
    with torch.no_grad():
        for places in by_dtype.values():
            terms = [[values[i] for i in places] for values in lists]
            for term in terms:
                _streams.use(term)
            total = tree_sum([_flatten_dense_tensors(term) for term in terms], target)
            parts = _unflatten_dense_tensors(total, terms[0])
            result.update((i, part.data) for i, part in zip(places, parts, strict=True))
    return [result[i] for i in range(len(result))]


def tree_sum(terms: list[torch.Tensor], target: torch.device) -> torch.Tensor:
    """Return the sum on the target, in the order of the tree; differentiable.

    Terms of fp16 and bf16 are summed in fp32, and the sum is rounded once.
    """
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

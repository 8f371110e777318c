"""Gradients reduced in a group without a native path: every rank gathers and sums all of them.

A single rank gathers nothing and may sum on its gradients' device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from fastcomm import _native


def reduce(
    tensors: Sequence[torch.Tensor],
    residuals: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None,
    how: tuple[bool, float, torch.dtype | None, int],
    on_host: bool,
) -> list[torch.Tensor]:
    """Reduce ``tensors`` in place, with the bits of the native operation.

    Args:
        tensors: the gradients.
        residuals: for error feedback, or none.
        group: any process group.
        how: ``average``, ``scale``, ``comm_dtype``, and the number of the norm.
        on_host: sum on the CPU, wherever the gradients are.

    Returns:
        The norm, the flag and the parts, as the native operation gives them.

    Raises:
        ValueError: a gradient that cannot be reduced, residuals unlike the gradients, or more ranks
            than a native group may have.
    """
    average, scale, comm_dtype, norm = how
    placed = [_copy_of(tensor) for tensor in tensors] if on_host else list(tensors)
    native = _native.load()
    native.gradient_norms(placed, norm)  # refuses what cannot be reduced
    size = dist.get_world_size(group)
    if size > native.MAX_RANKS:
        raise ValueError(f"gradients of {size} ranks: at most {native.MAX_RANKS} can be summed")
    sources: list[list[torch.Tensor]] = [[] for _ in range(size)]
    for tensor, place, own in zip(
        tensors, placed, terms_of(tensors, residuals, comm_dtype), strict=True
    ):
        terms = [own]
        if size > 1:
            terms = [torch.empty_like(own) for _ in range(size)]
            dist.all_gather(terms, own, group=group)
        for source, term in zip(sources, terms, strict=True):
            source.append(term.to(place.device, tensor.dtype))
    made: list[torch.Tensor]
    made = native.fused_sum_lists(sources, average, scale, comm_dtype, norm)
    write_back(tensors, made)
    return made[-3:]


def terms_of(
    tensors: Sequence[torch.Tensor],
    residuals: Sequence[torch.Tensor],
    comm_dtype: torch.dtype | None,
) -> list[torch.Tensor]:
    """Return this rank's term of each gradient: contiguous, rounded to the type of the wire.

    Raises:
        ValueError: residuals unlike the gradients; none has been touched.
    """
    _check_residuals(tensors, residuals)
    terms = []
    for i, tensor in enumerate(tensors):
        own = _in_order(tensor.detach()).resolve_conj().resolve_neg()
        if comm_dtype is not None and own.dtype == torch.float32:
            own = _rounded(own, comm_dtype, _in_order(residuals[i]) if residuals else None)
        terms.append(own)
    return terms


def write_back(tensors: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
    """Write the sums back, laid out as by `terms_of`; ``made`` may hold more after them."""
    with torch.no_grad():
        for tensor, total in zip(tensors, made, strict=False):
            _in_order(tensor, view=True).copy_(total)


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU with the same strides; a tensor on CPU or meta, or sparse, as is."""
    if tensor.device.type in ("cpu", "meta") or tensor.layout != torch.strided:
        return tensor
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return copy  # it overlaps itself: the caller refuses the copy for that
    return copy.copy_(tensor.detach())


def _check_residuals(tensors: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor]) -> None:
    if residuals and len(residuals) != len(tensors):
        raise ValueError(f"{len(residuals)} residuals for {len(tensors)} gradients")
    for tensor, residual in zip(tensors, residuals, strict=False):
        like = tensor if _in_order(tensor, view=True).is_contiguous() else tensor.contiguous()
        alike = (residual.shape, residual.stride()) == (like.shape, like.stride())
        if tensor.is_complex() and tensor.dtype == torch.complex64:
            raise ValueError("error feedback for complex gradients needs a native group")
        if residual.is_neg():
            raise ValueError("a residual is lazily negated, and would be written to: resolve it")
        if residual.dtype != torch.float32 or not alike:
            raise ValueError(f"a residual is of float32 and like its gradient, not {residual}")


def _rounded(
    value: torch.Tensor, comm_dtype: torch.dtype, residual: torch.Tensor | None
) -> torch.Tensor:
    """Return value plus residual, rounded to the wire type; the residual becomes what is lost."""
    if residual is None:
        return value.to(comm_dtype)
    value = value + residual
    rounded = value.to(comm_dtype)
    left = value - rounded.to(value.dtype)
    residual.copy_(torch.where(left.isfinite(), left, 0.0))
    return rounded


def _in_order(tensor: torch.Tensor, view: bool = False) -> torch.Tensor:
    """Return a contiguous view of the elements in memory order, the order of norms.

    A tensor with gaps has none: return a contiguous copy, or with ``view`` the tensor itself.
    """
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    dense = tensor.permute(order)
    if dense.is_contiguous():
        return dense
    return tensor if view else tensor.contiguous()

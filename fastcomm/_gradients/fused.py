"""Fused reductions: cast, sum, average, unscale, inf and NaN check and norm in one pass.

A gradient is reduced where it lies, without a flat buffer. Each rank's contribution is rounded to
the type of the wire; the sum has an fp32 (for fp64 an fp64) accumulator and the order of the fixed
tree over the ranks, is divided by their number, multiplied by ``scale``, and rounded once more.
``comm_dtype`` is about gradients of fp32; others travel as they are.

The norm is that of the reduced gradients. Each gradient's norm is computed in fp64 over units of
4,096 elements, which are combined in a fixed tree. The gradients' norms are combined likewise, in
the order of the list. The norm has the same bits on every rank, in every run, on the CPU and on
CUDA devices, and however the list is divided among several calls (`combined_norm`). So clipping by
it keeps the ranks' gradients equal.

`fused_reduce_add_coalesced`, `clip_grad_norm_` and `combined_norm` take tensors on CUDA devices
too. There a list costs one kernel for each of its dtypes and two small ones for the norm. Results
stay on the device, nothing waits for it, and a graph can capture the calls. With several devices
their current streams must be part of the capture, none of them a default stream: let them wait for
the captured stream first, and let it wait for them at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _native
from fastcomm._distributed import backend as _backend
from fastcomm._gradients import flat as _flat
from fastcomm._gradients import gathered as _gathered

__all__ = [
    "FusedResult",
    "clip_grad_norm_",
    "combined_norm",
    "fused_all_reduce_",
    "fused_reduce_add_coalesced",
]

_NO_NORM = 0
_NORMS = {1.0: 1, 2.0: 2, math.inf: 3}


@dataclass
class FusedResult:
    """Results of a fused reduction besides the gradients, on the gradients' device.

    Attributes:
        total_norm: 0-d, of fp32, or fp64 if a gradient is: the norm of all reduced gradients.
            None without ``norm_type``.
        found_inf: 0-d, of fp32: 1 if an element is infinite or NaN, else 0; what
            ``torch.amp.GradScaler`` and torch's fused optimizers take.
        partial_norms: 1-d, of fp64: for each gradient that is not None the sum of its squares
            (``norm_type=2``) or magnitudes (1), or its largest magnitude (inf). See
            `combined_norm`.
        norm_type: as in the call.
        work: for a call with ``async_op=True``; the tensors are complete once it is.
    """

    # Any in the type, instead of None, so that callers who asked for a norm need not rule out None.
    total_norm: torch.Tensor | Any
    found_inf: torch.Tensor
    partial_norms: torch.Tensor
    norm_type: float | None
    work: dist.Work | None = field(default=None, repr=False)

    def wait(self) -> None:
        """Wait for an asynchronous call, or let the current stream wait; raise its error.

        The error of a call on devices is raised if it is known by then.
        """
        if self.work is not None:
            self.work.wait()

    def feed(self, optimizer: torch.optim.Optimizer, max_norm: float | None = None) -> None:
        """Let the next step of a fused optimizer clip, or skip itself, without another pass.

        Sets ``optimizer.found_inf`` and ``optimizer.grad_scale``, which torch's optimizers with
        ``fused=True`` read: they divide the gradients by the scale as they load them, and do
        nothing where ``found_inf`` is 1. Call it again before each step.

        Args:
            optimizer: of ``torch.optim``, with ``fused=True``.
            max_norm: gradients are clipped to it, as by `clip_grad_norm_`.

        Raises:
            ValueError: the optimizer is not a fused one; ``max_norm`` without a norm.
        """
        if not all(group.get("fused") for group in optimizer.param_groups):
            raise ValueError("feed() needs an optimizer that was made with fused=True")
        target: Any = optimizer
        target.found_inf = self.found_inf
        target.grad_scale = torch.ones_like(self.found_inf)
        if max_norm is not None:
            check_max_norm(max_norm, self.norm_type)
            assert self.total_norm is not None
            scale = (self.total_norm + 1e-6) / max_norm
            target.grad_scale = scale.clamp(min=1.0).to(torch.float32)


def fused_all_reduce_(
    grads: Iterable[torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    *,
    average: bool = True,
    scale: float = 1.0,
    comm_dtype: torch.dtype | None = None,
    norm_type: float | None = 2.0,
    residuals: Iterable[torch.Tensor | None] | None = None,
    async_op: bool = False,
    timeout: timedelta | None = None,
) -> FusedResult:
    """Reduce gradients over the ranks of a group, in place and in one pass.

    Every rank calls it with a list of equal shapes and dtypes, and the same options.

    Args:
        grads: dense tensors of fp32, fp64, fp16, bf16 or complex numbers, of any shape and strides,
            none of which overlap; None entries are skipped. Gradients on the group's CUDA devices
            are reduced there where fastcomm serves such tensors natively (`fastcomm.explain`
            tells). Where another backend serves them, such as NCCL, it sums a flat bucket for each
            type, in its own order and with its own roundings, without comparing the ranks' lists;
            for a mean, terms are divided before the sum. All else is done on the devices, too.
            Otherwise gradients go through the host's memory, with the same bits. Only native calls
            are asynchronous.
        group: any process group; None is the default one. Native where its backend is fastcomm
            and the ranks share memory, or operations are composed of several hosts; else the ranks
            gather each other's gradients and sum them here, with the same bits, which takes more
            memory and time.
        average: divide by the number of ranks.
        scale: a factor, 1 / loss scale for instance.
        comm_dtype: ``torch.bfloat16`` or ``torch.float16``: how gradients of fp32 travel. Over
            several hosts, each partial sum of a host is rounded to it, too: the same bits on all
            ranks, which are not those of one host.
        norm_type: 1, 2, ``inf``, or None for no norm.
        residuals: for error feedback: one tensor of fp32 (of complex64 for a complex one, in native
            groups only) for each of ``grads``, with its shape and strides (contiguous where it has
            gaps) and on its device, nothing lazy, initially zero, and the same tensors from call to
            call. What rounding to the type of the wire takes from this rank's gradient is kept
            there and added to the next one. (The rounding of the sum is not fed back: only the rank
            that summed knows what it takes, and which rank that is depends on the list.) Not read
            for gradients that are not rounded.
        async_op: return at once; ``result.wait()`` waits. Native groups only; else the call is over
            when it returns.
        timeout: replaces the group's timeout; native groups only.

    Returns:
        A `FusedResult`.

    Raises:
        ValueError: an unknown ``norm_type`` or ``comm_dtype``; a gradient that is a parameter,
            sparse, of integers, on another device, or overlapping; residuals unlike the gradients.
            Nothing has been sent, and the other ranks wait for this one.
        CollectiveMismatchError: the lists of the ranks differ. No gradient has been touched.
        FastcommError: as for any collective. The gradients may be reduced in part.

    On devices no call waits for what it has enqueued. The last two errors are raised by ``wait()``
    if they are known by then, else by the group's next call; then gradients and norm are NaN, and
    ``found_inf`` is 1.
    """
    given = list(grads)
    tensors = [grad for grad in given if grad is not None]
    kept: list[torch.Tensor] = []
    if residuals is not None:
        pairs = zip(given, residuals, strict=True)
        kept = [residual for grad, residual in pairs if grad is not None and residual is not None]
    options = (average, scale, comm_dtype, norm_type)
    return reduce_list(tensors, group, options, residuals=kept, async_op=async_op, timeout=timeout)


def reduce_list(
    tensors: list[torch.Tensor],
    group: dist.ProcessGroup | None,
    options: tuple[bool, float, torch.dtype | None, float | None],
    *,
    offsets: Sequence[Sequence[int]] = (),
    residuals: Sequence[torch.Tensor] = (),
    async_op: bool = False,
    timeout: timedelta | None = None,
) -> FusedResult:
    """Reduce a list for `fused_all_reduce_`, or with ``offsets`` for `fused_reduce_scatter_`.

    Args:
        tensors, group, residuals, async_op, timeout: as there.
        options: ``average``, ``scale``, ``comm_dtype``, ``norm_type``.
        offsets: as for `fused_reduce_scatter_`.
    """
    refuse_parameters(tensors)
    average, scale, comm_dtype, norm_type = options
    norm = _norm_kind(norm_type)
    _check_wire(comm_dtype)
    how = (average, scale, comm_dtype, norm)
    seconds = None if timeout is None else timeout.total_seconds()
    backend = _backend.backend_of(group)
    if backend is not None:
        found = backend.fused_reduce(tensors, *how, seconds, async_op, offsets, list(residuals))
        if found is not None:
            work, results = found
            if work is not None and not async_op:
                work.wait()  # it has failed, which this raises; or several hosts are at it
                work = None
            return _result(results, norm_type, work)
    device = _device_with_kernels(tensors)
    alone = dist.get_world_size(group) == 1
    if device is not None and not alone and _another_serves(device, group, backend):
        return _result(_flat.reduce(tensors, residuals, group, how), norm_type)
    on_host = device is None or not alone
    return _result(_gathered.reduce(tensors, residuals, group, how, on_host), norm_type)


def fused_reduce_add_coalesced(
    inputs: Iterable[Sequence[torch.Tensor]],
    *,
    average: bool = False,
    scale: float = 1.0,
    comm_dtype: torch.dtype | None = None,
    norm_type: float | None = 2.0,
) -> tuple[tuple[torch.Tensor, ...], FusedResult]:
    """Sum lists of gradients of one process's replicas, with all that `fused_all_reduce_` does.

    Args:
        inputs: a list for each replica, of equal lengths, shapes and dtypes: all on the CPU, or
            each on one CUDA device, which may be the same; at most 16 lists there. Where the
            first's device does not reach another's memory, the sums go through the host's memory.
        average: divide by the number of lists.
        scale: a factor.
        comm_dtype: terms and sums of fp32 are rounded to it, as between ranks.
        norm_type: 1, 2, ``inf`` or None.

    Returns:
        New tensors, which autograd does not record, and the `FusedResult`, on the first list's
        device. The bits are those of `fused_all_reduce_` over as many ranks, except in a NaN.

    Raises:
        ValueError: as `fused_all_reduce_`; lists that differ.
    """
    lists = [list(values) for values in inputs]
    for values in lists:
        refuse_parameters(values)
    norm = _norm_kind(norm_type)
    _check_wire(comm_dtype)
    made = _native.load().fused_sum_lists(lists, average, scale, comm_dtype, norm)
    return tuple(made[:-3]), _result(made[-3:], norm_type)


def check_max_norm(max_norm: float | None, norm_type: float | None) -> None:
    """Raise ValueError where gradients cannot be clipped to ``max_norm``; None clips nothing."""
    if max_norm is None:
        return
    if norm_type is None:
        raise ValueError("max_norm needs a norm: norm_type is None")
    if not max_norm >= 0:
        raise ValueError(f"max_norm is a number from 0 up, or None for no clipping, not {max_norm}")


def refuse_parameters(tensors: Iterable[torch.Tensor]) -> None:
    """Raise ValueError for a list of parameters where one of gradients is wanted."""
    for i, tensor in enumerate(tensors):
        if tensor.requires_grad and tensor.is_leaf:
            raise ValueError(
                f"tensor {i} of the list is a parameter (a leaf that requires gradients), and no "
                "gradient: the weights would be reduced. Give [p.grad for p in parameters], or "
                "p.detach() where the weights are meant"
            )


def combined_norm(partial_norms: torch.Tensor, norm_type: float = 2.0) -> torch.Tensor:
    """Return the norm of gradients that were reduced in several calls.

    Args:
        partial_norms: the calls' `FusedResult.partial_norms`, joined in the order of the
            parameters; on any device.
        norm_type: that of the calls.

    Returns:
        A 0-d tensor of fp64 on the same device, with the bits that one call for all of them
        would give.
    """
    return _native.load().norm_of_parts(partial_norms, _norm_kind(norm_type))


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    total_norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """Clip gradients by their norm, as ``torch.nn.utils.clip_grad_norm_`` does.

    Args:
        parameters: a parameter, or several, whose gradients to clip; on the CPU or CUDA devices, or
            anywhere with ``total_norm``.
        max_norm: the norm that the gradients get if theirs is larger.
        norm_type: 1, 2 or ``inf``.
        error_if_nonfinite: raise instead of clipping by a norm that is inf or NaN. For CUDA tensors
            this waits for the device.
        foreach: how to multiply, as torch's.
        total_norm: the norm, where it is known already: `FusedResult.total_norm`.

    Returns:
        The norm before clipping, on the first gradient's device, with the same bits in every run.

    Raises:
        RuntimeError: the norm is inf or NaN, and ``error_if_nonfinite`` is set.
        ValueError: an unknown ``norm_type``; a negative ``max_norm``.
    """
    check_max_norm(max_norm, norm_type)
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [p.grad for p in given if p.grad is not None]
    if total_norm is None:
        total_norm = _total_norm(grads, norm_type)
    if error_if_nonfinite and not torch.isfinite(total_norm):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    torch.nn.utils.clip_grads_with_norm_(given, max_norm, total_norm, foreach)
    return total_norm


def _total_norm(grads: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """Return the norm of gradients, on the first one's device; each may be on another."""
    native, kind = _native.load(), _norm_kind(norm_type)
    places: dict[torch.device, list[int]] = {}
    for place, grad in enumerate(grads):
        places.setdefault(grad.device, []).append(place)
    norms = [native.gradient_norms([grads[i] for i in those], kind) for those in places.values()]
    if len(norms) <= 1:
        return norms[0][0] if norms else native.gradient_norms([], kind)[0]
    first = grads[0].device
    parts = torch.empty(len(grads), dtype=torch.float64, device=first)
    for those, (_, _, found) in zip(places.values(), norms, strict=True):
        parts[torch.tensor(those, device=first)] = found.to(first)
    wide = any(total.dtype == torch.float64 for total, _, _ in norms)
    return combined_norm(parts, norm_type).to(torch.float64 if wide else torch.float32)


def _device_with_kernels(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """Return the device of all tensors if it is one and our kernels serve its type, else None."""
    device, *others = {tensor.device for tensor in tensors} or {None}
    served = device is not None and device.type == _native.load().accelerator_type()
    return device if served and not others else None


def _another_serves(
    device: torch.device, group: dist.ProcessGroup | None, backend: Any | None
) -> bool:
    """Tell whether a backend made for such devices, such as NCCL, sums tensors there in a group."""
    if backend is not None:
        answer = backend.explain(str(device), "all_reduce", 1, "float32", "sum")
        return answer is not None and not answer["native"] and answer["algorithm"] != "gloo"
    pg = group if group is not None else dist.distributed_c10d._get_default_group()
    try:
        return bool(pg._get_backend(device).name() != "gloo")
    except RuntimeError:
        return False


def _norm_kind(norm_type: float | None) -> int:
    kind = _NO_NORM if norm_type is None else _NORMS.get(float(norm_type))
    if kind is None:
        raise ValueError(f"norm_type is 1, 2, inf or None, not {norm_type!r}")
    return kind


def _check_wire(comm_dtype: torch.dtype | None) -> None:
    if comm_dtype not in (None, torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"comm_dtype is torch.bfloat16 or torch.float16, not {comm_dtype}")


def _result(
    results: list[torch.Tensor], norm_type: float | None, work: dist.Work | None = None
) -> FusedResult:
    total, found_inf, parts = results
    return FusedResult(total if norm_type is not None else None, found_inf, parts, norm_type, work)

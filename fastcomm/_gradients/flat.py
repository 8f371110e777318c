"""Gradients on one device that another backend serves, such as NCCL: a flat bucket for each type.

The backend sums, in its own order and with its own roundings; our kernels do the rest: factor,
norm, and the check for inf and NaN. For a mean, terms are divided before the sum, as in stock DDP,
since the backend's accumulator may be no wider than what it sums. Nothing leaves the device,
nothing waits for it, and the ranks' lists are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from fastcomm import _native
from fastcomm._gradients import gathered as _gathered


def reduce(
    tensors: Sequence[torch.Tensor],
    residuals: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None,
    how: tuple[bool, float, torch.dtype | None, int],
) -> list[torch.Tensor]:
    """Reduce ``tensors`` in place.

    Args:
        tensors: the gradients, all on one device that kernels serve.
        residuals: for error feedback, or none.
        group: any process group that takes tensors of that device.
        how: ``average``, ``scale``, ``comm_dtype``, and the number of the norm.

    Returns:
        The norm, the flag and the parts, as the native operation gives them.

    Raises:
        ValueError: a gradient that cannot be reduced, or residuals unlike the gradients.
    """
    average, scale, comm_dtype, norm = how
    _native.load().gradient_norms(list(tensors), norm)  # refuses what cannot be reduced
    terms = _gathered.terms_of(tensors, residuals, comm_dtype)
    sums: list[torch.Tensor] = list(terms)
    for dtype in dict.fromkeys(term.dtype for term in terms):
        places = [i for i, term in enumerate(terms) if term.dtype == dtype]
        flat = torch.cat([terms[i].reshape(-1) for i in places])
        if average:
            flat.div_(dist.get_world_size(group))
        dist.all_reduce(flat, group=group)
        parts = flat.split([terms[i].numel() for i in places])
        for i, part in zip(places, parts, strict=True):
            sums[i] = part.view_as(terms[i]).to(tensors[i].dtype)
    made: list[torch.Tensor]
    made = _native.load().fused_sum_lists([sums], False, scale, comm_dtype, norm)
    _gathered.write_back(tensors, made)
    return made[-3:]

"""The tail of a tensor-parallel layer in plain torch, to the bit."""

from __future__ import annotations

import torch

LANES = 32


def add_rms_norm(
    total: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of residual + total, times the weight, and residual + total."""
    dtype, hidden = total.dtype, total.shape[-1]
    residual = (residual.float() + total.float()).to(dtype)
    squares = torch.nn.functional.pad(residual.float() ** 2, (0, -hidden % LANES))
    lanes = torch.zeros(*squares.shape[:-1], LANES)
    for row in squares.split(LANES, dim=-1):  # element i in lane i mod LANES, in order
        lanes = lanes + row
    while lanes.shape[-1] > 1:  # (0,1), (2,3), ..., then pairs of pairs
        lanes = lanes[..., 0::2] + lanes[..., 1::2]
    scale = torch.rsqrt(lanes / hidden + eps)  # 1 / sqrt, both rounded; torch.sqrt itself is not
    return (residual.float() * scale).to(dtype) * weight, residual

"""What all_reduce_add_rms_norm_ computes, in plain torch.

    torchrun --nproc-per-node 2 docs/examples/rms_norm.py

docs/numerics.md says what the operator promises.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def add_rms_norm(
    total: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the norm and the new residual, with the bits of the operator."""
    dtype, hidden = total.dtype, total.shape[-1]
    residual = (residual.float() + total.float()).to(dtype)
    squares = torch.nn.functional.pad(residual.float() ** 2, (0, -hidden % 32))
    lanes = torch.zeros(*squares.shape[:-1], 32)
    for row in squares.split(32, dim=-1):  # element i in lane i mod 32, in order
        lanes = lanes + row
    while lanes.shape[-1] > 1:  # (0,1), (2,3), ..., then pairs of pairs
        lanes = lanes[..., 0::2] + lanes[..., 1::2]
    scale = torch.rsqrt(lanes / hidden + eps)  # 1 / sqrt(...), both rounded
    return (residual.float() * scale).to(dtype) * weight, residual


dist.init_process_group("fastcomm")
name = dist.group.WORLD.group_name
torch.manual_seed(dist.get_rank())
x = torch.randn(1, 4096).bfloat16()
residual, weight = torch.ones(1, 4096).bfloat16(), torch.full((4096,), 0.5).bfloat16()
total = x.clone()
dist.all_reduce(total)
expected = add_rms_norm(total, residual, weight, 1e-6)
torch.ops.fastcomm.all_reduce_add_rms_norm_(x, residual, weight, 1e-6, name)
assert torch.equal(x, expected[0]) and torch.equal(residual, expected[1])
print(f"rank {dist.get_rank()}: the same bits")
dist.destroy_process_group()

"""Inputs whose sums show the order of addition."""

from __future__ import annotations

import torch

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def cancelling(dtype: torch.dtype, count: int, rank: int, seed: int = 0) -> torch.Tensor:
    """Return a rank's input: magnitudes far apart and both signs, so that order changes bits.

    Every rank can make the input of every other rank. Integers use their whole range: sums wrap.
    """
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.3
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, (count,), generator=generator, dtype=dtype)
    span = 12 if dtype == torch.float16 else 30
    exponent = torch.randint(-span // 2, span // 2, (count,), generator=generator)
    values = torch.randn(count, generator=generator, dtype=torch.float64) * 2.0**exponent
    return values.to(dtype)


def special(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Return zeros of both signs, infinities, NaN, extremes and subnormals, rotated by rank."""
    info = torch.finfo(dtype)
    values = torch.tensor(
        [0.0, -0.0, float("inf"), float("-inf"), float("nan"), info.max, -info.max, info.tiny,
         info.smallest_normal / 2, -info.smallest_normal / 4, info.eps, 1.0, 1 + info.eps],
        dtype=dtype,
    )  # fmt: skip
    return values.roll(rank)

"""Random values of every type, and their bytes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from support import reductions

REDUCED = [*reductions.DTYPES, *reductions.COMPLEX]
MOVED = [*REDUCED, *reductions.NARROW]
SPECIAL = "special"  # NaN, infinities, subnormals; integers that wrap
WHOLE = "whole"  # small whole numbers, whose sums are exact in any order


def made(kind: str, dtype: torch.dtype, shape: Sequence[int], *seed: object) -> torch.Tensor:
    """Return values that depend on nothing but the arguments, the same on every rank."""
    number = zlib.crc32(repr((kind, *seed)).encode())
    count = math.prod(shape)
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    if dtype.is_complex:
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        return torch.view_as_complex(made(kind, real, (*shape, 2), *seed))
    if dtype in reductions.NARROW:
        return made(SPECIAL, torch.uint8, shape, *seed).view(dtype)
    if kind == SPECIAL:
        return reductions.inputs(dtype, count, number).view(tuple(shape))
    draw = torch.Generator().manual_seed(number)
    low = -3 if dtype.is_signed else 0
    high = 2 if dtype == torch.bool else 4
    return torch.randint(low, high, tuple(shape), generator=draw).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the elements."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def joined(parts: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Join parts, of narrow types too."""
    if math.prod(shape) == 0:
        return torch.empty(tuple(shape), dtype=parts[0].dtype)
    return torch.cat([bits(part) for part in parts]).view(parts[0].dtype).view(tuple(shape))

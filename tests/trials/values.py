"""Random values of every type, and how results are compared."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from support import reductions
from support.tree import same_bits

FLOATS = reductions.FLOATS
COMPLEX = [torch.complex64, torch.complex128]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu]
REDUCED = [*reductions.DTYPES, *COMPLEX]
MOVED = [*REDUCED, *NARROW]
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
    if dtype in NARROW:
        return made(SPECIAL, torch.uint8, shape, *seed).view(dtype)
    if kind == SPECIAL:
        return reductions.inputs(dtype, count, number).view(tuple(shape))
    draw = torch.Generator().manual_seed(number)
    low = -3 if dtype.is_signed else 0
    high = 2 if dtype == torch.bool else 4
    return torch.randint(low, high, tuple(shape), generator=draw).to(dtype)


def exists(op: str, dtype: torch.dtype) -> bool:
    """Tell whether there is such a reduction."""
    if dtype in NARROW:
        return False
    if dtype.is_complex:
        return op in ("sum", "avg", "premul_sum")
    return reductions.exists(op, dtype)


def reduced(terms: list[torch.Tensor], op: str) -> torch.Tensor:
    """Return the reduction of one tensor per rank, in the documented order."""
    shape = terms[0].shape
    if terms[0].is_complex():
        parts = [torch.view_as_real(term).reshape(-1) for term in terms]
        return torch.view_as_complex(reductions.reduced(parts, op).view(*shape, 2))
    return reductions.reduced([term.reshape(-1) for term in terms], op).view(shape)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Compare bits; two NaNs are the same, whatever their payload."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    found, wanted = found.detach().resolve_conj().resolve_neg(), wanted.detach()
    if found.is_complex():
        return same_bits(torch.view_as_real(found), torch.view_as_real(wanted.resolve_conj()))
    if found.dtype in NARROW:
        return torch.equal(bits(found), bits(wanted))
    return same_bits(found, wanted.resolve_neg())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the elements."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def joined(parts: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Join parts, of narrow types too."""
    if math.prod(shape) == 0:
        return torch.empty(tuple(shape), dtype=parts[0].dtype)
    return torch.cat([bits(part) for part in parts]).view(parts[0].dtype).view(tuple(shape))

"""How far a sum of tensors is from the exact one, relative to the sums and in ulps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Exact:
    """Sums of terms and of their magnitudes, element by element, rounded once, to fp64."""

    sums: torch.Tensor
    magnitudes: torch.Tensor


@dataclass(frozen=True)
class Errors:
    """Of one result.

    Attributes:
        rms, max: relative to the root mean square of the exact sums.
        max_ulp: in units in the last place of the type that the result was rounded to, at the exact
            sum: at most 0.5 where a sum is rounded once. Without bound for others, because terms
            may cancel.
        max_ulp_of_terms: the same, at the sum of the terms' magnitudes, which do not cancel.
    """

    rms: float
    max: float
    max_ulp: float
    max_ulp_of_terms: float


def exact(terms: Sequence[torch.Tensor]) -> Exact:
    """Sum by math.fsum, which loses nothing before its one rounding."""
    columns = list(zip(*(term.double().tolist() for term in terms), strict=True))
    sums = [math.fsum(column) for column in columns]
    magnitudes = [math.fsum(map(abs, column)) for column in columns]
    return Exact(*(torch.tensor(v, dtype=torch.float64) for v in (sums, magnitudes)))


def ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of ``dtype``'s neighbours around each of ``values``, which are of fp64."""
    info = torch.finfo(dtype)
    # frexp's mantissa lies in [0.5, 1). All values below the normal ones are as far apart as these.
    exponent = torch.frexp(values.abs().clamp(min=info.smallest_normal)).exponent
    return torch.ldexp(torch.full_like(values, info.eps), exponent - 1)


def rms(values: torch.Tensor) -> float:
    """The root of the mean square."""
    return float(values.square().mean().sqrt())


def errors(result: torch.Tensor, wanted: Exact, rounded_to: torch.dtype) -> Errors:
    """Measure ``result``, whose values are of the type ``rounded_to``, whatever its own is."""
    wrong = (result.double() - wanted.sums).abs()
    scale = rms(wanted.sums)
    return Errors(
        rms(wrong) / scale,
        float(wrong.max()) / scale,
        float((wrong / ulp(wanted.sums, rounded_to)).max()),
        float((wrong / ulp(wanted.magnitudes, rounded_to)).max()),
    )

"""The order of a reduction, in plain Python: a fixed balanced binary tree over the ranks.

Independent of the C++: it goes level by level, as the promise is worded; the C++ recurses.
"""

from __future__ import annotations

import torch

_ACCUMULATOR = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


def tree_sum(values: list[torch.Tensor], average: bool = False) -> torch.Tensor:
    """Sum one tensor per rank: (0,1), (2,3), ..., then pairs of pairs; an odd one passes up.

    fp16, bf16 and fp32 are summed in fp32, fp64 in fp64, integers in their own type, bool by "or".
    One rounding to the input's type, at the end.
    """
    dtype = values[0].dtype
    level = [value.to(_ACCUMULATOR.get(dtype, dtype)) for value in values]
    while len(level) > 1:
        pairs = [
            level[i] | level[i + 1] if dtype == torch.bool else level[i] + level[i + 1]
            for i in range(0, len(level) - 1, 2)
        ]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    total = level[0]
    if average:
        size = len(values)
        total = (
            total / torch.tensor(size, dtype=total.dtype)
            if total.is_floating_point()
            else torch.div(total, size, rounding_mode="trunc").to(dtype)
        )
    return total.to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bit patterns; two NaNs are the same whatever their payload, 0.0 and -0.0 are not."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = (each.detach().resolve_conj().resolve_neg() for each in (a, b))
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if a.is_floating_point() and a.element_size() == 1:  # their bytes alone
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    if a.is_floating_point():
        nan = a.isnan()
        if not torch.equal(nan, b.isnan()):
            return False
        width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        zero = torch.zeros((), dtype=width)
        a = torch.where(nan, zero, a.contiguous().view(width))
        b = torch.where(nan, zero, b.contiguous().view(width))
    return torch.equal(a, b)

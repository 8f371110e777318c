"""Every reduction of every dtype by numpy and torch, independent of the C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from support.tree import same_bits, tree_sum

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = [*SIGNED, *UNSIGNED]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
COMPLEX = [torch.complex64, torch.complex128]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu]
OPS = ("sum", "avg", "premul_sum", "min", "max", "product", "band", "bor", "bxor")
FACTOR = 1 / 3


def exists(op: str, dtype: torch.dtype) -> bool:
    """Tell whether there is such a reduction."""
    if dtype in NARROW:
        return False
    if dtype.is_complex:
        return op in ("sum", "avg", "premul_sum")
    if op in ("band", "bor", "bxor"):
        return dtype not in FLOATS
    if op == "premul_sum":
        return dtype in FLOATS
    return op != "avg" or dtype != torch.bool


def op_of(name: str) -> Any:
    """Return what torch.distributed calls a reduction."""
    if name == "premul_sum":
        made: Any = getattr(dist, "_make_nccl_premul_sum", None)  # torch before 2.13
        return (made or dist.ReduceOp.PREMUL_SUM)(FACTOR)
    return getattr(dist.ReduceOp, name.upper())


def same(got: torch.Tensor, wanted: torch.Tensor, op: str) -> bool:
    """Tell whether two results are equal: NaN payloads are promised only for minima and maxima."""
    if op in ("min", "max") and got.dtype in FLOATS:  # the same NaN
        return torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))
    return same_bits(got, wanted)


def inputs(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    """Return a rank's terms: for floats NaN, zeros of both signs, infinities and subnormals too."""
    generator = np.random.default_rng(1000 * count + rank)
    if dtype == torch.bool:
        return torch.from_numpy(generator.random(count) < 0.6)
    if dtype not in FLOATS:
        raw = generator.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype)
    values = torch.from_numpy(generator.standard_normal(count)) * 2.0 ** torch.from_numpy(
        generator.integers(-6, 6, count)
    )
    info = torch.finfo(dtype)
    kinds = torch.tensor(
        [0.0, -0.0, float("inf"), float("-inf"), float("nan"), info.smallest_normal / 4,
         -info.smallest_normal / 2, info.max], dtype=torch.float64,
    )  # fmt: skip
    # Each position has a kind, so that zeros meet zeros; a NaN meets numbers too.
    place = torch.arange(count) % 16
    chosen = torch.from_numpy(generator.integers(0, 2, count))
    for at, pair in enumerate(((0, 1), (2, 3), (5, 6), (4, 7), (0, 2))):
        values = torch.where(place == at, kinds[torch.tensor(pair)][chosen], values)
    return values.to(dtype)


def _over(terms: list[torch.Tensor], combine: Callable[[Any, Any], Any]) -> torch.Tensor:
    """Combine integers and bool by the fixed tree."""
    level = [term.numpy() for term in terms]
    while len(level) > 1:
        pairs = [combine(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return torch.from_numpy(np.asarray(level[0]))


def _extreme(terms: list[torch.Tensor], largest: bool) -> torch.Tensor:
    found, nan = terms[0], terms[0].isnan()
    for term in terms[1:]:
        a, b = (found, term) if largest else (term, found)
        better = (b > a) | ((b == a) & a.signbit() & ~b.signbit())
        found = torch.where(better, term, found)
        nan = nan | term.isnan()
    return torch.where(nan, torch.tensor(float("nan"), dtype=found.dtype), found)


def _product(terms: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.float64 if terms[0].dtype == torch.float64 else torch.float32
    level = [term.to(wide) for term in terms]
    while len(level) > 1:
        pairs = [level[i] * level[i + 1] for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0].to(terms[0].dtype)


_OF_INTEGERS = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def reduced(terms: list[torch.Tensor], op: str) -> torch.Tensor:
    """Return the reduction of one tensor per rank."""
    dtype = terms[0].dtype
    if dtype.is_complex:
        return torch.view_as_complex(reduced([torch.view_as_real(term) for term in terms], op))
    if dtype not in FLOATS:
        if op != "avg":
            return _over(terms, _OF_INTEGERS[op])
        total, size = _over(terms, np.add), len(terms)
        flat = total.flatten().tolist()
        means = [abs(value) // size * (1 if value >= 0 else -1) for value in flat]
        return torch.from_numpy(np.array(means, dtype=total.numpy().dtype)).view(total.shape)
    if op in ("min", "max"):
        return _extreme(terms, op == "max")
    if op == "product":
        return _product(terms)
    if op == "premul_sum":
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return tree_sum([t.to(wide) * torch.tensor(FACTOR, dtype=wide) for t in terms]).to(dtype)
    return tree_sum(terms, op == "avg")

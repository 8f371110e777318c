"""Common parts of all cases: whole numbers to send, exact sums of them, the interface."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist

import fastcomm

Call = Callable[[], object]

# The names of torch 2.13, which warns at each call by the older ones.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def pattern(numel: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Return the part of ``rank``: ``numel`` whole numbers; a shifted or missing chunk shows.

    The period is a prime, so no power-of-two chunk is a copy of its neighbour.  In types of one or
    two bytes the sum over 8 ranks stays within 124, which bfloat16 and int8 hold exactly. Of bool
    each rank has true elements of its own, so that one that is missing shows.
    """
    return _repeated(_one_period(dtype, rank).to(dtype), numel)


def pattern_sum(numel: int, dtype: torch.dtype, size: int) -> torch.Tensor:
    """The sum of what ``size`` ranks contribute, rounded or wrapped once; of bool, their "or"."""
    total = torch.stack([_one_period(dtype, rank).to(torch.int64) for rank in range(size)]).sum(0)
    return _repeated(total.to(dtype), numel)


def _one_period(dtype: torch.dtype, rank: int) -> torch.Tensor:
    numbers = torch.arange(13 if dtype.itemsize <= 2 else 8191)
    return numbers == rank % len(numbers) if dtype == torch.bool else numbers + rank


def _repeated(period: torch.Tensor, numel: int) -> torch.Tensor:
    return period.repeat(-(-numel // len(period)))[:numel]


REDUCTIONS: dict[str, dist.ReduceOp.RedOpType] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


def operands(numel: int, dtype: torch.dtype, rank: int, reduction: str) -> torch.Tensor:
    """Return the operand of ``rank`` in a reduction: of sums the pattern, else ones and twos.

    So the products of 8 ranks are exact in every type, or wrapped alike.
    """
    if reduction == "sum":
        return pattern(numel, dtype, rank)
    return _repeated((_one_period(torch.int64, rank) % 2 + 1).to(dtype), numel)


def reduced(numel: int, dtype: torch.dtype, size: int, reduction: str) -> torch.Tensor:
    """Return the result for `operands` of ``size`` ranks, rounded or wrapped once."""
    if reduction == "sum":
        return pattern_sum(numel, dtype, size)
    each = torch.stack([_one_period(torch.int64, rank) % 2 + 1 for rank in range(size)])
    if reduction == "avg":
        total = each.sum(0)
        of_integers = not (dtype.is_floating_point or dtype.is_complex)
        return _repeated((total // size if of_integers else total.double() / size).to(dtype), numel)
    if dtype == torch.bool:
        each = each.to(dtype)
    combine: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "min": torch.minimum,
        "max": torch.maximum,
        "product": torch.mul,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
    return _repeated(functools.reduce(combine[reduction], each).to(dtype), numel)


def count_wrong(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Number of elements that differ, wherever the tensor is."""
    return int(torch.ne(actual.cpu(), expected).sum())


Maker = Callable[[int, torch.dtype], torch.Tensor]


@dataclass(frozen=True)
class _Makers:
    """The source of a case's buffers, given (numel, dtype)."""

    ordinary: Maker
    shared: Maker


_makers = _Makers(
    lambda numel, dtype: torch.empty(numel, dtype=dtype),
    lambda numel, dtype: fastcomm.empty(numel, dtype=dtype),
)


@contextlib.contextmanager
def buffers_from(ordinary: Maker, shared: Maker | None = None) -> Iterator[None]:
    """While it lasts, cases of this process have their buffers from ``ordinary(numel, dtype)``.

    Those that are about memory which other ranks reach have them from ``shared``.
    """
    global _makers
    before, _makers = _makers, _Makers(ordinary, shared or ordinary)
    try:
        yield
    finally:
        _makers = before


class Case(ABC):
    """Buffers of one operation at one size, the same memory for every backend.

    Args:
        nbytes: size wished for; ``self.nbytes`` is what came out, at least one element a rank.
        dtype: of the elements.
        rank, size: of the calling process, the same in all groups measured.
    """

    name: ClassVar[str]
    sized: ClassVar[bool] = True
    repeats: ClassVar[int] = 1
    """Return the number of measured operations in a call; records have the time of one."""
    reduces: ClassVar[bool] = False
    reduction: str = "sum"
    """How, where it is one that reduces: a name of `REDUCTIONS`."""

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        self.rank, self.size, self.dtype = rank, size, dtype
        self.numel = max(1, nbytes // dtype.itemsize)
        self.nbytes = self.numel * dtype.itemsize

    def why_not(self) -> str:
        """Why there is no such operation of the case's type, or nothing."""
        of_floats = self.dtype.is_floating_point or self.dtype.is_complex
        if self.reduction in ("band", "bor", "bxor") and of_floats:
            return f"{self.reduction} is of integers"
        if self.reduction in ("min", "max", "product") and self.dtype.is_complex:
            return f"{self.reduction} is not of complex numbers"
        if self.reduction == "avg" and self.dtype == torch.bool:
            return "avg is not of bool"
        return ""

    @property
    def label(self) -> str:
        """Its name in records: with the reduction, if that is no sum."""
        return self.name if self.reduction == "sum" else f"{self.name}({self.reduction})"

    @staticmethod
    @abstractmethod
    def bus_factor(size: int) -> float:
        """Bus bandwidth over algorithm bandwidth for ``size`` ranks."""

    @abstractmethod
    def bind(self, group: dist.ProcessGroup) -> Call:
        """The call to measure: blocking, in place on the case's buffers."""

    @abstractmethod
    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        """Run once over ``group`` on known values; the number of wrong elements on this rank.

        ``control`` is another group of the same ranks, for what the check has to exchange.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Fill the buffers for timing: zeros, which stay zeros however often they are summed."""

    def empty(self, numel: int) -> torch.Tensor:
        """A buffer of the case's type; in ordinary memory of the CPU, or see `buffers_from`."""
        return _makers.ordinary(numel, self.dtype)

    def shared(self, numel: int) -> torch.Tensor:
        """The same in memory of ``fastcomm.empty``."""
        return _makers.shared(numel, self.dtype)


class PartsCase(Case):
    """The size is that of the parts of all ranks together; ``numel`` is that of one."""

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes // size, dtype, rank, size)
        self.nbytes *= size

    @staticmethod
    def bus_factor(size: int) -> float:
        return (size - 1) / size

    def part_of(self, sender: int, receiver: int) -> torch.Tensor:
        """Return the part of ``sender`` for ``receiver``, where it has one for each."""
        whole = pattern(self.size * self.numel, self.dtype, sender)
        return whole.view(self.size, -1)[receiver]

    def own_results(self) -> torch.Tensor:
        """Return the result of all ranks' parts for this one."""
        whole = reduced(self.size * self.numel, self.dtype, self.size, self.reduction)
        return whole.view(self.size, -1)[self.rank]


class UnsizedCase(Case):
    """Moves no data worth a size."""

    sized = False

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.nbytes = self.numel = 0

    @staticmethod
    def bus_factor(size: int) -> float:
        return 0.0

    def prepare(self) -> None:
        pass

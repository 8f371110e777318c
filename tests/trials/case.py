"""A random call: its tensors, and what plain torch says that they hold afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from support import reductions
from trials import values
from trials.layouts import LAZY, Laid, Layout, Shape, Sparse, drawn

ROOTED = ("reduce", "broadcast", "gather", "scatter", "messages", "batch_isend_irecv")
GLOO = [*reductions.FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64]
LARGEST = 3 << 20  # bytes of a large tensor


# What a tensor must hold afterwards: what it held, or this; a function where it takes long to find.
Wanted: TypeAlias = torch.Tensor | Callable[[], torch.Tensor] | None


@dataclass
class Spec:
    """An operation, the same on every rank.

    Attributes:
        members: the global ranks of its group, in order.
        root: a rank of the group.
        shapes: of the tensors; what they mean depends on the operation.
        plain: the part of tensors that are plain.
        alike: whether all tensors lie alike, on all ranks.
    """

    name: str
    seed: int
    members: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    op: str
    shapes: list[Shape]
    root: int
    asynchronous: bool
    plain: float
    alike: bool
    option: int

    def takes(self, form: str, written: bool) -> bool:
        """Whether torch hands the backend a tensor of this form.

        What is written to lazily negated or conjugated ones is lost in torch, but in lists of
        lists. Most of torch's functions refuse conjugated ones.
        """
        lists = self.name in ("all_gather", "all_gather_coalesced", "gather")
        if written and form in (*LAZY, "conjugated"):
            return lists and form != "conjugated"
        reads = ("reduce_scatter", "reduce_scatter_tensor", "gather")
        return form != "conjugated" or self.name in reads

    @property
    def for_gloo(self) -> Spec | None:
        """The same for Gloo; None where some of Gloo's ranks crash, or wait for others that raise.

        Tensors are plain, unless all ranks give what Gloo may refuse.
        """
        if "reduce_scatter" in self.name and not all(self.shapes):
            return None  # without dimensions: crashes
        if self.name in ROOTED and self.dtype not in GLOO:
            return None
        same = self.alike and len(self.shapes) == 1 and self.name not in ROOTED
        return self if same else replace(self, plain=1.0)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def reduces(self) -> bool:
        return "reduce" in self.name

    @property
    def refused(self) -> bool:
        """Whether there is no such reduction."""
        return self.reduces and not reductions.exists(self.op, self.dtype)

    @property
    def exact(self) -> bool:
        """Whether the result does not depend on an order of summation."""
        return not self.reduces or (self.kind == values.WHOLE and self.op != "premul_sum")


@dataclass
class Case:
    """A rank's call, with tensors of its own."""

    call: Callable[[], Any]
    wanted: list[tuple[str, Laid | Sparse, Wanted]] = field(default_factory=list)
    objects: Callable[[], str] = lambda: ""  # what is wrong with results that are no tensors

    def trouble(self) -> str:
        for name, laid, wanted in self.wanted:
            if text := laid.trouble(wanted() if callable(wanted) else wanted):
                return f"{name}: {text}"
        return self.objects()

    def touched(self) -> str:
        """Say which tensor a call that raised has changed, if any."""
        found = ((name, laid.trouble()) for name, laid, _ in self.wanted)
        return next((f"{name} of a call that raised: {text}" for name, text in found if text), "")


class Maker:
    """Makes the case of one rank."""

    def __init__(self, spec: Spec, rank: int, group: dist.ProcessGroup) -> None:
        self.spec, self.rank, self.group, self.size = spec, rank, group, spec.size
        self.case = Case(lambda: None)
        self.options: dict[str, Any] = {"group": group, "async_op": spec.asynchronous}

    def made(self) -> Case:
        """Hand the case over: its call needs what is here, so one that stayed would be a cycle."""
        case = self.case
        del self.case
        return case

    def _layout(self, rank: int, name: str, shape: Shape, written: bool) -> Layout:
        spec = self.spec
        which = f"{spec.seed}" if spec.alike else f"{spec.seed} {rank} {name}"
        found = drawn(random.Random(which), shape, spec.dtype, written, spec.plain)
        return found if spec.takes(found.form, written) else Layout()

    def term(self, rank: int, name: str, shape: Shape, written: bool = False) -> torch.Tensor:
        """Return what a rank brings."""
        found = values.made(self.spec.kind, self.spec.dtype, shape, self.spec.seed, rank, name)
        if self._layout(rank, name, shape, written).form == "expanded":
            found = found[:1].expand(shape).clone()
        return found

    def given(self, name: str, shape: Shape, wanted: Wanted = None) -> torch.Tensor:
        """Lay out this rank's input; ``wanted`` is what it must be afterwards, if it is written."""
        written = wanted is not None
        return self._laid(name, self.term(self.rank, name, shape, written), wanted, written)

    def output(self, name: str, wanted: torch.Tensor) -> torch.Tensor:
        """Lay out a tensor for a result."""
        before = values.made(values.WHOLE, self.spec.dtype, tuple(wanted.shape), "before")
        return self._laid(name, before, wanted, True)

    def _laid(self, name: str, begin: torch.Tensor, wanted: Wanted, written: bool) -> torch.Tensor:
        laid = Laid(begin, self._layout(self.rank, name, tuple(begin.shape), written))
        self.case.wanted.append((name, laid, wanted))
        return laid.given

    def terms(self, name: str, shape: Shape, written: bool = False) -> list[torch.Tensor]:
        return [self.term(rank, name, shape, written) for rank in range(self.size)]

    def sum(self, name: str, shape: Shape, written: bool = False) -> torch.Tensor:
        """Return the reduction of all ranks' terms."""
        return self.reduced(self.terms(name, shape, written))

    def reduced(self, terms: list[torch.Tensor]) -> torch.Tensor:
        """Return the reduction of one tensor per rank; something if there is none."""
        return terms[self.rank] if self.spec.refused else reductions.reduced(terms, self.spec.op)

    def op(self) -> Any:
        return reductions.op_of(self.spec.op)

    def rows(self, most: int) -> list[list[int]]:
        """Draw how many rows each rank has for each."""
        choice, ranks = random.Random(self.spec.seed), range(self.size)
        return [[choice.randint(0, most) for _ in ranks] for _ in ranks]


def ranks_of(make: Maker, rank: int, word: str) -> dict[str, int]:
    """Name a rank as torch allows, by its number in the world or in the group."""
    if make.spec.option % 2:
        return {f"group_{word}": rank}
    return {word: make.spec.members[rank]}


def whole_shape(size: int, shape: Shape, stacked: bool) -> Shape:
    """Return the shape of joined parts: along the first dimension, or along a new one."""
    return (size, *shape) if stacked or not shape else (size * shape[0], *shape[1:])


def whole(parts: list[torch.Tensor], stacked: bool) -> torch.Tensor:
    return values.joined(parts, whole_shape(len(parts), tuple(parts[0].shape), stacked))


def pair(make: Maker, source: int, target: int) -> Shape:
    shapes = make.spec.shapes
    return shapes[(source * 3 + target * 5) % len(shapes)]

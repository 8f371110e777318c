"""Random layouts: memory, and a view of it that an operation is given."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from support.reductions import FLOATS
from support.tree import same_bits
from trials.values import bits

import fastcomm

Shape = tuple[int, ...]
Form = Callable[[Shape], tuple[int, Callable[[torch.Tensor], torch.Tensor]]]


def _alone(view: Callable[[torch.Tensor, Shape], torch.Tensor]) -> Form:
    """Return the form of a view of all that is there."""
    return lambda shape: (prod(shape), lambda base: view(base, shape))


# How many elements a shape takes, and the view of them.
FORMS: dict[str, Form] = {
    "offset": lambda shape: (
        prod(shape) + 5,
        lambda base: base[3 : 3 + prod(shape)].view(shape),
    ),
    "strided": lambda shape: (2 * prod(shape) + 1, lambda base: base[1::2].view(shape)),
    "transposed": _alone(
        lambda base, shape: base.view(shape[::-1]).permute(tuple(range(len(shape)))[::-1])
    ),
    "sliced": lambda shape: (
        prod(shape[:-1]) * (shape[-1] + 3),
        lambda base: base.view(*shape[:-1], shape[-1] + 3)[..., 1:-2],
    ),
    "channels_last": _alone(
        lambda base, shape: base.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
    ),
    "expanded": lambda shape: (
        prod(shape[1:]),
        lambda base: base.view(1, *shape[1:]).expand(shape),
    ),
    "conjugated": _alone(lambda base, shape: base.view(shape).conj()),
    "negated": _alone(lambda base, shape: torch._neg_view(base.view(shape))),
    "negated with gaps": lambda shape: (
        2 * prod(shape),
        lambda base: torch._neg_view(base[::2].view(shape)),
    ),
}
LAZY = ("negated", "negated with gaps")
MEMORY = ["own", "own", "shared by torch", "fastcomm.empty"]


@dataclass
class Layout:
    """How a tensor lies.

    Attributes:
        form: a name in `FORMS`, or "plain".
        memory: one of `MEMORY`.
        grad: whether the tensor requires a gradient.
    """

    form: str = "plain"
    memory: str = "own"
    grad: bool = False


def drawn(
    choice: random.Random, shape: Sequence[int], dtype: torch.dtype, written: bool, plain: float
) -> Layout:
    """Draw a layout that a tensor of this shape can have.

    Args:
        written: whether the operation writes the tensor, which rules out ``expand()``.
        plain: the part of tensors that are plain.
    """
    if choice.random() < plain:
        return Layout()
    forms = ["plain", "offset", "strided"]
    forms += ["transposed"] * (len(shape) > 1) + ["sliced"] * (len(shape) > 0)
    forms += ["channels_last"] * 3 * (len(shape) == 4)
    forms += ["expanded"] * (not written and len(shape) > 0)
    forms += ["conjugated"] * 2 * dtype.is_complex
    forms += ["negated", "negated with gaps"] * (dtype in FLOATS)
    differentiable = dtype in FLOATS or dtype.is_complex
    return Layout(
        choice.choice(forms), choice.choice(MEMORY), differentiable and choice.random() < 0.2
    )


class Laid:
    """A tensor in its memory, what it must be afterwards, and whether nothing else was touched."""

    def __init__(self, values: torch.Tensor, layout: Layout) -> None:
        shape = tuple(values.shape)
        form = FORMS.get(layout.form)
        count, self._view = form(shape) if form else (values.numel(), lambda b: b.view(shape))
        if layout.memory == "fastcomm.empty":
            self.base = fastcomm.empty(count, dtype=values.dtype)
        else:
            self.base = torch.empty(count, dtype=values.dtype)
        if layout.memory == "shared by torch":
            self.base.share_memory_()
        self._all = form is None or layout.form == "expanded"  # nothing lies beside it
        if not self._all:
            bits(self.base).copy_(torch.arange(self.base.nbytes) % 2)  # also a bool
        self.layout, self.wanted = layout, values
        if layout.form == "expanded":  # all rows are the first
            self._view(self.base)[:1].copy_(values[:1])
            self.wanted = values[:1].expand(shape)
        else:
            self._view(self.base).copy_(values)
        self.given = self._view(self.base).detach()
        if layout.grad:
            self.given.requires_grad_()
        self._before = self.base.clone()

    def trouble(self, wanted: torch.Tensor | None = None) -> str:
        """Return what is wrong with it, if anything, where ``wanted`` is not what it was."""
        wanted = self.wanted if wanted is None else wanted
        if not same_bits(self.given, wanted):
            return f"{self.layout}: found {_shown(self.given)}, wanted {_shown(wanted)}"
        if self._all:
            return ""
        bases = [self._before.clone(), self.base.clone()]
        for base in bases:
            self._view(base).copy_(wanted)
        return "" if torch.equal(*map(bits, bases)) else f"{self.layout}: memory beside it changed"


class Sparse:
    """A sparse tensor, and what it must be afterwards."""

    def __init__(self, given: torch.Tensor) -> None:
        self.given, self._before = given, given.to_dense()

    def trouble(self, wanted: torch.Tensor | None = None) -> str:
        """Return what is wrong with it, as `Laid` does."""
        found, wanted = self.given.to_dense(), self._before if wanted is None else wanted
        return "" if same_bits(found, wanted) else f"found {_shown(found)}, wanted {_shown(wanted)}"


def _shown(tensor: torch.Tensor) -> str:
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    return f"{plain[:8].tolist()}{'...' if len(plain) > 8 else ''} {tuple(tensor.shape)}"

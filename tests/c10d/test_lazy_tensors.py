"""Tensors that are lazily conjugated or negated: every collective does with them what Gloo does.

Much of that is torch's own: its functions refuse some conjugated tensors, and its dispatcher hands
copies of negated ones to every backend, where what is written is lost (docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World

COUNTS = (6, 20_000)  # one-shot and pipelined
ROOT = 1
Make = Callable[[int], torch.Tensor]


def _conjugated(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.complex64).conj()


def _negated(count: int) -> torch.Tensor:
    return torch._neg_view(torch.zeros(count))


def _negated_with_gaps(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.complex64).conj().imag


LAZY: dict[str, Make] = {
    "conjugated": _conjugated,
    "negated": _negated,
    "negated with gaps": _negated_with_gaps,
}


class Tensors:
    """Makes inputs and outputs, lazy or not, and remembers all of them."""

    def __init__(self, rank: int, size: int, count: int, make: Make, lazy: str) -> None:
        self.rank, self.size, self.count = rank, size, count
        self._make, self._lazy = make, lazy
        self.made: list[torch.Tensor] = []

    def _one(self, role: str, count: int, seed: int) -> torch.Tensor:
        tensor = self._make(count)
        if role not in self._lazy:
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
        values = torch.arange(count, dtype=torch.float32) % 11 + seed
        given = torch.complex(values, values + 1) if tensor.is_complex() else values
        self.made.append(tensor.copy_(given))
        return tensor

    def input(self, many: int = 1, seed: int = 0) -> torch.Tensor:
        return self._one("input", self.count * many, 100 * self.rank + 17 * seed)

    def output(self, many: int = 1) -> torch.Tensor:
        return self._one("output", self.count * many, 1000)

    def inputs(self) -> list[torch.Tensor]:
        return [self.input(seed=peer) for peer in range(self.size)]

    def outputs(self) -> list[torch.Tensor]:
        return [self.output() for _ in range(self.size)]


def _exchanged(t: Tensors, g: Any) -> None:
    if t.rank == ROOT:
        dist.send(t.input(), group=g, group_dst=0)
    elif t.rank == 0:
        dist.recv(t.output(), group=g, group_src=ROOT)


def _batched(t: Tensors, g: Any) -> None:
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    operations = [
        dist.P2POp(dist.isend, t.input(), group=g, group_peer=right),
        dist.P2POp(dist.irecv, t.output(), group=g, group_peer=left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _reduced(t: Tensors, g: Any) -> None:
    dist.reduce(t.input(), group=g, group_dst=ROOT)
    if t.rank != ROOT:
        t.made.clear()  # where Gloo leaves terms of the sum


def _coalesced(t: Tensors, g: Any) -> None:
    dist.all_reduce_coalesced([t.input(), t.input()], group=g)


# In place, a tensor is input and output.
CALLS: dict[str, Callable[[Tensors, Any], Any]] = {
    "all_reduce": lambda t, g: dist.all_reduce(t.input(), group=g),
    "all_reduce max": lambda t, g: dist.all_reduce(t.input(), dist.ReduceOp.MAX, group=g),
    "all_reduce_coalesced": _coalesced,
    "broadcast": lambda t, g: dist.broadcast(t.input(), group=g, group_src=ROOT),
    "reduce": _reduced,
    "all_gather": lambda t, g: dist.all_gather(t.outputs(), t.input(), group=g),
    "all_gather_into_tensor": lambda t, g: dist.all_gather_into_tensor(
        t.output(t.size), t.input(), group=g
    ),
    "reduce_scatter": lambda t, g: dist.reduce_scatter(t.output(), t.inputs(), group=g),
    "reduce_scatter_tensor": lambda t, g: dist.reduce_scatter_tensor(
        t.output(), t.input(t.size), group=g
    ),
    "gather": lambda t, g: dist.gather(
        t.input(), t.outputs() if t.rank == ROOT else None, group=g, group_dst=ROOT
    ),
    "scatter": lambda t, g: dist.scatter(
        t.output(), t.inputs() if t.rank == ROOT else None, group=g, group_src=ROOT
    ),
    "all_to_all": lambda t, g: dist.all_to_all(t.outputs(), t.inputs(), group=g),
    "all_to_all_single": lambda t, g: dist.all_to_all_single(
        t.output(t.size), t.input(t.size), group=g
    ),
    "send and recv": _exchanged,
    "batch_isend_irecv": _batched,
}


def _done(call: Callable[[Tensors, Any], Any], tensors: Tensors, group: Any) -> Any:
    """Return the values of all tensors after the call, or how it was refused."""
    try:
        call(tensors, group)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return [tensor.resolve_conj().resolve_neg().tolist() for tensor in tensors.made]


def _alone(kind: str, name: str, lazy: str) -> bool:
    """Tell whether some ranks alone refuse a call, or one that has begun to send."""
    if kind != "conjugated" or lazy == "input, output":
        return False
    return name in ("gather", "scatter", "send and recv", "batch_isend_irecv")


def _gloo_fails(kind: str, name: str, lazy: str) -> bool:
    """Tell whether Gloo gathers no complex tensors, or reads memory without its sign."""
    return (name == "gather" and kind == "conjugated") or (name == "scatter" and lazy == "input")


@pytest.mark.parametrize("lazy", ["input", "output", "input, output"])
@pytest.mark.parametrize("kind", LAZY)
@on_ranks(3)
def test_values_or_refusals_are_those_of_gloo(world: World, kind: str, lazy: str) -> None:
    world.init()
    ours, theirs = dist.group.WORLD, dist.new_group(backend="gloo")
    differing = []
    for name, call in CALLS.items():
        if _alone(kind, name, lazy):
            continue
        reference = (ours, "") if _gloo_fails(kind, name, lazy) else (theirs, lazy)
        for count in COUNTS:
            found = []
            for group, which in ((ours, lazy), reference):
                tensors = Tensors(world.rank, world.size, count, LAZY[kind], which)
                found.append(_done(call, tensors, group))
            if found[0] != found[1]:
                texts = [str(each)[:200] for each in found]
                differing.append(f"{name} of {count}: {texts[0]} and not {texts[1]}")
    assert not differing, "\n".join(differing)

"""Several devices in each process of a DistributedDataParallel, against plain torch on the CPU.

The reference runs all replicas of all processes in one process, one after the other, on copies of
one model, and sums their gradients in the documented order: over the replicas, then the processes.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support import fused, tree
from support.ranks import World, run_ranks
from torch import nn

import fastcomm

STEPS = 4
Gradients = list[torch.Tensor | None]


class Model(nn.Module):
    """With buffers, a frozen layer, one that nobody uses, and one that some replicas use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.first = nn.Linear(12, 40)
        self.norm = nn.BatchNorm1d(40)
        self.frozen = nn.Linear(40, 40).requires_grad_(False)
        self.sometimes = nn.Linear(40, 40)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(40, 5)

    def forward(self, x: torch.Tensor, always: bool = False) -> torch.Tensor:
        torch.get_num_threads()  # else a new thread's matrix products ignore the setting
        y = self.frozen(self.norm(self.first(x)).tanh())
        if always or x[0, 0] > 0:
            y = y + self.sometimes(y)
        out: torch.Tensor = self.head(y)
        return out


def _batch(rank: int, step: int) -> torch.Tensor:
    x = torch.randn(15, 12, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x * 10.0 ** (rank % 3)  # terms of different sizes: the order of the sum shows


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    # With weight decay a gradient of zeros is not the same as none.
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def _state(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def _total(terms: Gradients, like: torch.Tensor, ranks: bool) -> torch.Tensor | None:
    if all(term is None for term in terms):
        return None
    dense = [torch.zeros_like(like) if term is None else term for term in terms]
    return fused.reduced(dense, True, 1.0, None) if ranks else tree.tree_sum(dense)


def _replicas_gradients(
    model: nn.Module, buffers: nn.Module, x: torch.Tensor, count: int, always: bool
) -> Gradients:
    """Return one process's gradients, and leave the first replica's buffers in ``buffers``."""
    copies = [copy.deepcopy(model) for _ in range(count)]
    for replica in copies:
        replica.zero_grad()
        for own, given in zip(replica.buffers(), buffers.buffers(), strict=True):
            own.copy_(given)
    chunks = zip(copies, x.chunk(count), strict=False)
    torch.cat([replica(chunk, always) for replica, chunk in chunks]).square().mean().backward()
    for given, own in zip(buffers.buffers(), copies[0].buffers(), strict=True):
        given.copy_(own)
    places = zip(*([p.grad for p in replica.parameters()] for replica in copies), strict=True)
    return [
        _total(list(place), p, ranks=False)
        for place, p in zip(places, model.parameters(), strict=True)
    ]


def _reference(
    processes: int, devices: int, *, always: bool, zeros: bool, broadcast: bool, accumulate: bool
) -> list[list[torch.Tensor]]:
    """Train, and return what each process has in the end."""
    model = Model()
    optimizer = _optimizer(model)
    buffers = [copy.deepcopy(model) for _ in range(processes)]
    sums: list[Gradients] = [[None] * len(list(model.parameters())) for _ in range(processes)]
    for step in range(STEPS):
        quiet = accumulate and step % 2 == 0
        # After a step without synchronisation DDP does not send buffers.
        if broadcast and not (accumulate and step % 2 == 1):
            buffers = [copy.deepcopy(buffers[0]) for _ in range(processes)]
        for rank in range(processes):
            grads = _replicas_gradients(model, buffers[rank], _batch(rank, step), devices, always)
            sums[rank] = [
                new if old is None else old if new is None else old + new
                for old, new in zip(sums[rank], grads, strict=True)
            ]
        if quiet:
            continue
        for p, terms in zip(model.parameters(), zip(*sums, strict=True), strict=True):
            p.grad = _total(list(terms), p, ranks=True)
            if p.grad is None and zeros and p.requires_grad:
                p.grad = torch.zeros_like(p)
        sums = [[None] * len(grads) for _ in range(processes)]
        optimizer.step()
    result = []
    for own in buffers:
        for theirs, value in zip(own.parameters(), model.parameters(), strict=True):
            theirs.data.copy_(value)
        result.append(_state(own))
    return result


MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "unused": {"find_unused_parameters": True},
    "unused in many buckets": {"find_unused_parameters": True, "bucket_cap_mb": 0.002},
    "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
    "views of unused": {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    "static graph": {"static_graph": True},
    "own buffers": {"broadcast_buffers": False},
    "accumulate": {},
    "accumulate unused": {"find_unused_parameters": True},
}


def _trained(world: World, kind: str, devices: int, names: list[str]) -> None:
    places = world.join(kind, devices)
    for name in names:
        options = MODES[name]
        static, accumulate = options.get("static_graph", False), "accumulate" in name
        model = Model().to(places[0])
        ddp = fastcomm.nn.parallel.DistributedDataParallel(model, places, **options)
        optimizer = _optimizer(ddp)
        for step in range(STEPS):
            quiet = accumulate and step % 2 == 0
            with ddp.no_sync() if quiet else nullcontext():
                x = _batch(world.rank, step).to(places[0])
                ddp(x, static).square().mean().backward()
            if not quiet:
                optimizer.step()
                optimizer.zero_grad()
        found = _state(model)
        wanted = _reference(
            world.size,
            devices,
            always=static,
            zeros=not (static or options.get("find_unused_parameters", False)),
            broadcast=options.get("broadcast_buffers", True),
            accumulate=accumulate,
        )[world.rank]
        for key, a, b in zip(model.state_dict(), found, wanted, strict=True):
            assert torch.equal(a.cpu(), b), f"{name}: {key}: {(a.cpu() - b).abs().max()}"


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (1, 4), (3, 3), (4, 3)])
def test_training_has_the_bits_of_the_reference(processes: int, devices: int) -> None:
    run_ranks(processes, _trained, "cpu", devices, list(MODES))


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (1, 4), (2, 3)])
def test_so_it_has_on_devices(processes: int, devices: int) -> None:
    run_ranks(processes, _trained, "sim", devices, list(MODES))


def test_so_it_has_without_a_native_path() -> None:
    run_ranks(2, _trained, "cpu", 3, ["unused"], environment={"FASTCOMM_TRANSPORT": "gloo"})

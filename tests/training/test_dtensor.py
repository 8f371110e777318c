"""DTensor: every redistribution, uneven parts, and operations over sharded tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.alike import Near, run_alike
from support.ranks import World
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    ones,
)

# Rows and columns that two, three and four ranks share unevenly; at four ranks one has no column.
SHAPE = (7, 3)
WHOLE: list[Placement] = [Shard(0), Shard(1), Replicate()]


def _whole() -> torch.Tensor:
    return torch.arange(21.0).sin().view(SHAPE)


def _placed(mesh: DeviceMesh, placements: Sequence[Placement], rank: int) -> DTensor:
    if isinstance(placements[0], Partial):
        return DTensor.from_local(_whole() * (1 + rank), mesh, placements)
    return distribute_tensor(_whole(), mesh, placements)


def _redistribute(
    world: World, shape: tuple[int, ...], sources: list[Placement], targets: list[Placement]
) -> dict[str, Any]:
    """Redistribute between all placements, also asynchronously; gradients go the same way back."""
    mesh = init_device_mesh("cpu", shape)
    ways = (itertools.product(kinds, repeat=len(shape)) for kinds in (sources, targets))
    found: dict[str, Any] = {}
    for source, target in itertools.product(*ways):
        value = _placed(mesh, source, world.rank)
        moved = value.redistribute(mesh, target)
        later = value.redistribute(mesh, target, async_op=True)
        found[f"{source} to {target}"] = moved
        assert torch.equal(later.to_local() + 0, moved.to_local())
        if not isinstance(source[0], Partial):
            assert torch.equal(moved.full_tensor(), _whole())
            leaf = value.detach().requires_grad_()
            leaf.redistribute(mesh, target).to_local().square().sum().backward()
            assert leaf.grad is not None
            found[f"gradient of {source} to {target}"] = leaf.grad.full_tensor()
    return found


def _operations(world: World) -> dict[str, Any]:
    """Do what torch derives from placements: products, sums, norms, and their gradients."""
    mesh = init_device_mesh("cpu", (world.size,))
    a, b = (distribute_tensor(_whole(), mesh, [Shard(dim)]) for dim in (0, 1))
    product = (a @ b.t()).full_tensor()
    torch.testing.assert_close(product, _whole() @ _whole().t())
    leaf = a.detach().requires_grad_()
    (leaf.softmax(0) * b).sum().backward()
    assert leaf.grad is not None
    return {
        "product": product,
        "sum": a.sum(0).full_tensor(),
        "mean": b.mean().full_tensor(),
        "maximum": a.max().full_tensor(),
        "norm": torch.linalg.vector_norm(a).full_tensor(),
        "gradient": leaf.grad.full_tensor(),
        "from rank 0 alone": distribute_tensor(_whole() * (1 + world.rank), mesh, [Shard(0)]),
        "copied from rank 0": distribute_tensor(_whole() * (1 + world.rank), mesh, [Replicate()]),
        "ones": ones(SHAPE, device_mesh=mesh, placements=[Shard(0)]).full_tensor(),
    }


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.release), 4])
def test_redistributions(size: int) -> None:
    run_alike(size, _redistribute, (size,), [*WHOLE, Partial(), Partial("max")], WHOLE, near=Near())


def test_redistributions_in_two_dimensions() -> None:
    """To the bit: nothing is summed."""
    run_alike(4, _redistribute, (2, 2), WHOLE, WHOLE)


@pytest.mark.parametrize("size", [2, 3])
def test_operations(size: int) -> None:
    run_alike(size, _operations, near=Near())

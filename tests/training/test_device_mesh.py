"""Meshes: their groups, slices of them, and collectives within each."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from support.alike import Near, run_alike
from support.ranks import World
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def _in_group(group: dist.ProcessGroup, rank: int) -> list[Any]:
    """Return the ranks of a group, by a collective of each kind that groups are made for."""
    size = dist.get_world_size(group)
    total = torch.tensor([rank + 0.25, 1.0])
    dist.all_reduce(total, group=group)
    members = [torch.empty(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(members, torch.tensor([rank]), group=group)
    assert [int(member) for member in members] == dist.get_process_group_ranks(group)
    first = torch.tensor([float(rank)])
    dist.broadcast(first, group=group, group_src=0)
    turned = torch.empty(size)
    dist.all_to_all_single(turned, torch.full((size,), float(rank)), group=group)
    return [total, members, first, turned]


def _slices(world: World) -> dict[str, Any]:
    """Slice 2 x 2 ranks: rows, columns, both as one, and a mesh made from a group."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    found: dict[str, Any] = {"coordinate": mesh.get_coordinate()}
    for name in ("rows", "columns"):
        group = mesh[name].get_group()
        found[name] = [_in_group(group, world.rank), mesh.get_local_rank(name), mesh[name].size()]
        assert DeviceMesh.from_group(group, "cpu").mesh.tolist() == mesh[name].mesh.tolist()
    both = mesh["rows", "columns"]._flatten("all")
    found["all"] = _in_group(both.get_group(), world.rank)
    found["again"] = _in_group(mesh["all"].get_group(), world.rank)
    found["pairs"] = [_in_group(group, world.rank) for group in mesh.get_all_groups()]
    return found


def test_slices_of_a_mesh() -> None:
    run_alike(4, _slices, near=Near())


def _other_orders(world: World) -> list[Any]:
    """Use ranks in another order, and a mesh without the first rank."""
    turned = DeviceMesh("cpu", [2, 0, 1])
    some = DeviceMesh("cpu", [1, 2])
    found = [turned.get_local_rank(), _in_group(turned.get_group(), world.rank)]
    if world.rank > 0:
        found.append(_in_group(some.get_group(), world.rank))
    else:
        assert some.get_coordinate() is None
    return found


def test_ranks_in_other_orders() -> None:
    run_alike(3, _other_orders, near=Near())

"""What a process group does besides operations: errors, splitting, its ends."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.ranks import World, run_ranks

import fastcomm._distributed.backend


def _backend() -> Any:
    backend = fastcomm._distributed.backend.backend_of()
    assert backend is not None
    return backend


def _split(world: World) -> list[float]:
    world.init()
    backend = _backend()
    assert backend.supports_splitting
    members = [0, 2]
    part = dist.group.WORLD.split_group(members, timedelta(seconds=20), None, "part")  # type: ignore[union-attr]
    assert (part is None) == (world.rank not in members)
    if part is None:
        return []
    value = torch.tensor([float(world.rank)])
    part.allreduce([value]).wait()
    return [part.rank(), part.size(), value.item()]


def test_a_group_is_split() -> None:
    assert run_ranks(3, _split) == [[0, 2, 2.0], [], [1, 2, 2.0]]


def _split_without_room(world: World) -> Caught:
    world.init()
    split = dist.group.WORLD.split_group  # type: ignore[union-attr]
    caught = catch(lambda: [split([0, 1], None, None, f"part {i}") for i in range(9)])
    value = torch.ones(2)
    dist.all_reduce(value)
    assert value.tolist() == [2, 2]
    return caught


def test_a_group_is_not_split_where_shared_memory_is_used_up() -> None:
    for caught in run_ranks(2, _split_without_room, environment={"FASTCOMM_SEGMENT_MB": "16"}):
        assert caught.kind == "CommunicationSystemError", caught
        assert "raise FASTCOMM_SEGMENT_MB. new_group() makes one over Gloo" in caught.text


def _fails(world: World) -> list[str]:
    world.init()
    backend = _backend()
    names = [backend.get_error().name]
    if world.rank == 0:
        catch(dist.all_reduce, torch.ones(1))
        names.append(backend.get_error().name)
    else:
        time.sleep(2)
    backend.shutdown()
    backend.shutdown()
    backend.abort()
    return names


def test_the_kind_of_error_is_told() -> None:
    first, _ = run_ranks(2, _fails, group_timeout=1.0)
    assert first == ["SUCCESS", "TIMEOUT"]

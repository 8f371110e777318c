"""What a process group does besides operations: errors, splitting, its ends."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World

import fastcomm._distributed.backend


def _backend() -> Any:
    backend = fastcomm._distributed.backend.backend_of()
    assert backend is not None
    return backend


@on_ranks(3)
def test_a_group_is_split(world: World) -> None:
    world.init()
    backend = _backend()
    assert backend.supports_splitting
    members = [0, 2]
    part = dist.group.WORLD.split_group(members, timedelta(seconds=20), None, "part")
    assert (part is None) == (world.rank not in members)
    if part is not None:
        value = torch.tensor([float(world.rank)])
        part.allreduce([value]).wait()
        assert (part.rank(), part.size(), value.item()) == (members.index(world.rank), 2, 2.0)


@on_ranks(2, environment={"FASTCOMM_SEGMENT_MB": "16"})
def test_a_group_is_not_split_where_shared_memory_is_used_up(world: World) -> None:
    world.init()
    split = dist.group.WORLD.split_group
    caught = catch(lambda: [split([0, 1], None, None, f"part {i}") for i in range(9)])
    value = torch.ones(2)
    dist.all_reduce(value)
    assert value.tolist() == [2, 2]
    assert caught.kind == "CommunicationSystemError", caught
    assert "raise FASTCOMM_SEGMENT_MB. new_group() makes one over Gloo" in caught.text


@on_ranks(2, group_timeout=1.0)
def test_the_kind_of_error_is_told(world: World) -> None:
    world.init()
    backend = _backend()
    assert backend.get_error().name == "SUCCESS"
    if world.rank == 0:
        catch(dist.all_reduce, torch.ones(1))
        assert backend.get_error().name == "TIMEOUT"
    else:
        time.sleep(2)
    backend.shutdown()
    backend.shutdown()
    backend.abort()

"""Ranks that do not fit together, or do not come: the ranks present soon get a clear error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.patience import SOON
from support.ranks import World, run_ranks


@pytest.mark.parametrize("sizes", [[2, 3], [3, 2], [3, 3, 4], [3, 2, 3]])
def test_ranks_of_different_world_sizes_are_told(sizes: list[int]) -> None:
    """They are told long before the timeout; then the same processes form a right group."""
    run_ranks(len(sizes), _with_size, sizes)


def _with_size(world: World, sizes: list[int]) -> None:
    wrong = replace(world, size=sizes[world.rank])
    caught = catch(wrong.init, name="wrong")
    world.init(name="right")
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == len(sizes)
    assert caught.kind == "CollectiveArgumentError", caught
    assert "ValueError" in caught.bases
    assert "give every rank the same world size" in caught.text
    assert caught.seconds < SOON, caught


def _without_the_last(world: World) -> Caught | None:
    if world.rank == world.size - 1:
        return None
    world.tell(f"rank {world.rank} is here")
    world.hear(f"rank {1 - world.rank} is here")
    return catch(lambda: world.init(forming=world.timeout))


def test_a_rank_that_does_not_come_is_named() -> None:
    told = run_ranks(3, _without_the_last, group_timeout=3)
    assert told[2] is None
    for caught in told[:2]:
        assert caught.kind == "CollectiveTimeoutError", caught
        assert caught.seconds < SOON, caught
    assert "ranks 2 did not arrive" in told[0].text

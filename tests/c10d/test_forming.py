"""Ranks that do not fit together, or do not come: the ranks present soon get a clear error."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks
from support.stores import join_over, tcp_store


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


def _loses_the_store(world: World) -> Caught | None:
    store = tcp_store(world)
    if world.rank == 0:
        world.hear("rank 1 begins")
        os._exit(0)  # and the store with it
    world.tell("rank 1 begins")
    return catch(join_over, store, world)


def test_a_store_that_goes_is_said_in_a_sentence() -> None:
    caught = run_outcomes(2, _loses_the_store)[1].value
    assert caught.kind == "CommunicationSystemError", caught
    assert "the store failed: " in caught.text
    assert "held by the first rank's process" in caught.text
    assert "\n" not in caught.text and "frame #" not in caught.text


def test_a_rank_that_does_not_come_is_named() -> None:
    told = run_ranks(3, _without_the_last, group_timeout=3)
    assert told[2] is None
    for caught in told[:2]:
        assert caught.kind == "CollectiveTimeoutError", caught
        assert caught.seconds < SOON, caught
    assert "ranks 2 did not arrive" in told[0].text

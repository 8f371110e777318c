"""Calls after a group has failed say what failed, and which call they are about."""

from __future__ import annotations

import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.ranks import World, run_ranks


def _go_on_after_a_mismatch(world: World) -> list[Caught]:
    world.init()
    dist.all_reduce(torch.ones(4))
    first = catch(dist.all_reduce, torch.ones(4 + world.rank))
    later = catch(dist.broadcast, torch.ones(9), 0)
    waiting = dist.all_reduce(torch.ones(2), async_op=True)
    return [first, later, catch(waiting.wait)]


def test_later_calls_name_themselves_and_the_failure() -> None:
    for first, later, waited in run_ranks(2, _go_on_after_a_mismatch):
        assert {one.kind for one in (first, later, waited)} == {"CollectiveMismatchError"}
        assert (first.operation, first.sequence) == ("all_reduce", 1)
        assert "comes after" not in first.text
        for one, name in ((later, "broadcast"), (waited, "all_reduce")):
            # The attributes are about the failure, the text is about both.
            assert (one.operation, one.sequence) == ("all_reduce", 1)
            assert f"this call of {name} comes after the process group has failed" in one.text
            assert "the ranks called different operations" in one.text  # why


def _be_late(world: World) -> Caught | None:
    world.init()
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 1:
        store.wait(["told"])
        return None
    told = catch(dist.all_reduce, torch.ones(4))
    store.set("told", "")
    return told


def test_a_timeout_has_the_words_that_others_look_for() -> None:
    told = run_ranks(2, _be_late, group_timeout=1)[0]
    assert told.kind == "CollectiveTimeoutError" and "Timed out waiting 1000ms" in told.text, told

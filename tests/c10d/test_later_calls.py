"""Calls after a group has failed say what failed, and which call they are about."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World


@on_ranks(2)
def test_later_calls_name_themselves_and_the_failure(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(4))
    first = catch(dist.all_reduce, torch.ones(4 + world.rank))
    later = catch(dist.broadcast, torch.ones(9), 0)
    waiting = dist.all_reduce(torch.ones(2), async_op=True)
    for one, name in ((first, ""), (later, "broadcast"), (catch(waiting.wait), "all_reduce")):
        # The attributes are about the failure, the text is about both.
        assert one.kind == "CollectiveMismatchError"
        assert (one.operation, one.sequence) == ("all_reduce", 1)
        assert "the ranks called different operations" in one.text  # why
        after = f"this call of {name} comes after the process group has failed"
        assert after in one.text if name else "comes after" not in one.text


@on_ranks(2, group_timeout=1)
def test_a_timeout_has_the_words_that_others_look_for(world: World) -> None:
    world.init()
    if world.rank == 1:
        return world.hear("told")
    told = catch(dist.all_reduce, torch.ones(4))
    world.tell("told")
    assert told.kind == "CollectiveTimeoutError" and "Timed out waiting 1000ms" in told.text, told


def _gather() -> None:
    dist.all_gather([torch.empty(100) for _ in range(2)], torch.ones(100))


# Whatever rank 0 has done before it gives up is enough for rank 1.
COLLECTIVES: dict[str, Callable[[], object]] = {
    "short": lambda: dist.all_reduce(torch.ones(1_000)),
    "long": lambda: dist.all_reduce(torch.ones(2_000_000)),
    "asynchronous": lambda: dist.all_reduce(torch.ones(9), async_op=True).wait(),
    "barrier": dist.barrier,
    "all_gather": _gather,
    "broadcast": lambda: dist.broadcast(torch.ones(9), 0),
}


def _give_up(case: str) -> None:
    if case == "leave":
        dist.all_reduce(torch.ones(9), async_op=True)
        return dist.destroy_process_group()
    dist.group.WORLD.set_timeout(timedelta(milliseconds=100))
    if case == "recv":
        dist.send(torch.ones(9), 1)
    call = COLLECTIVES.get(case, lambda: dist.recv(torch.ones(9), 1, tag=5))
    assert catch(call).kind == "CollectiveTimeoutError"


@on_ranks(2)
def test_a_call_that_starts_after_a_peer_has_raised_raises(world: World) -> None:
    calls = {
        **COLLECTIVES,
        "leave": COLLECTIVES["asynchronous"],
        "send": lambda: dist.send(torch.ones(9), 0),
        "recv": lambda: dist.recv(torch.ones(9), 0),
    }
    for case, call in calls.items():
        world.init(name=f"store of {case}")
        dist.barrier()
        if world.rank == 0:
            _give_up(case)
            world.tell(f"{case} is over")
        else:
            world.hear(f"{case} is over")
            kind = "PeerLeftError" if case == "leave" else "CollectiveTimeoutError"
            assert catch(call).kind == kind, case
        if dist.is_initialized():
            dist.destroy_process_group()

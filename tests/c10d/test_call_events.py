"""Calls as torch's profiler shows them, and as tools around it know them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.direct import SMALL, joined
from support.ranks import World, run_ranks
from support.trace import comms_of, traced

GROUP = {"Group size": 3, "Process Group Ranks": "[0, 1, 2]", "Process Group Name": "0"}
GROUP |= {"Process Group Description": "default_pg"}
HAS_NUMBERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


def _collectives(world: World) -> list[dict[str, Any]]:
    world.init()

    def calls() -> None:
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(10, dtype=torch.bfloat16), async_op=True).wait()
        dist.broadcast(torch.ones(4), 2)
        dist.all_gather([torch.ones(5)] * 3, torch.ones(5))
        dist.reduce_scatter(torch.ones(2), [torch.ones(2)] * 3)
        dist.gather(torch.ones(3), [torch.ones(3)] * 3 if world.rank == 1 else None, 1)
        taken = [world.rank + 1] * 3
        dist.all_to_all_single(torch.ones(sum(taken)), torch.ones(6), taken, [1, 2, 3])
        dist.barrier()

    return comms_of(traced(calls))


def test_collectives_have_what_nccl_gives_them() -> None:
    for rank, found in enumerate(run_ranks(3, _collectives)):
        for event in found:
            assert GROUP.items() <= event.items(), event
        wanted = [  # name, elements in and out, dtype, rank or root
            ("allreduce", 10, 10, "Float", rank),
            ("allreduce", 10, 10, "BFloat16", rank),
            ("broadcast", 4, 4, "Float", 2),
            ("all_gather", 5, 15, "Float", rank),
            ("reduce_scatter", 6, 2, "Float", rank),
            ("gather", 3, 9 if rank == 1 else 3, "Float", 1),
            ("all_to_allv", 6, 3 * (rank + 1), "Float", rank),
            ("barrier", 0, 0, "Byte", rank),
        ]
        keys = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Rank")
        told = [tuple(event[key] for key in keys) for event in found]
        # What another rank than the root gets of a gather is nothing, as torch gives it.
        assert [row for row in told if row[0] != "gather"] == [
            row for row in wanted if row[0] != "gather"
        ]
        splits = found[6]["In split size"], found[6]["Out split size"]
        assert splits == ("[1, 2, 3]", str([rank + 1] * 3))


def _over_lists(world: World) -> list[dict[str, Any]]:
    world.init()
    group = dist.group.WORLD
    assert group is not None
    backend: Any = group._get_backend(torch.device("cpu"))

    def of(rows: int) -> list[torch.Tensor]:
        return [torch.ones(rows, n) for n in (1, 2)]

    def calls() -> None:
        backend.allreduce_coalesced(of(1)).wait()
        backend.allgather_coalesced([of(1), of(1)], of(1)).wait()
        with dist._coalescing_manager():
            for all_rows, own in zip(of(2), of(1), strict=True):
                dist.all_gather_into_tensor(all_rows, own)
        with dist._coalescing_manager():
            for all_rows, own in zip(of(2), of(1), strict=True):
                dist.reduce_scatter_tensor(own, all_rows)
        with dist._coalescing_manager(device=torch.device("cpu")):
            dist.reduce_scatter(torch.ones(1), [torch.ones(1)] * 2)

    return comms_of(traced(calls))


def test_calls_over_lists_have_names_of_their_own() -> None:
    for found in run_ranks(2, _over_lists):
        keys = ("Collective name", "In msg nelems", "Out msg nelems")
        assert [tuple(event[key] for key in keys) for event in found] == [
            ("allreduce_coalesced", 3, 3),
            ("allgather_coalesced", 3, 6),
            ("all_gather_into_tensor_coalesced", 3, 6),
            ("reduce_scatter_tensor_coalesced", 6, 3),
            ("reduce_scatter", 2, 1),
        ]


def _of_a_part(world: World) -> list[dict[str, Any]]:
    world.init()
    part = dist.new_group([1, 3], group_desc="odd ones")
    if world.rank not in (1, 3):
        return []
    return comms_of(traced(lambda: dist.all_reduce(torch.ones(1), group=part)))


def test_a_part_of_the_ranks_has_their_numbers() -> None:
    for found in run_ranks(4, _of_a_part)[1::2]:
        (event,) = found
        assert event["Process Group Ranks"] == "[1, 3]" and event["Group size"] == 2
        assert event["Process Group Description"] == "odd ones"
        assert (event["Global rank start"], event["Global rank stride"]) == (1, 2)


def _messages(world: World) -> list[dict[str, Any]]:
    world.init()
    peer = 1 - world.rank
    call = dist.send if world.rank == 0 else dist.recv
    return comms_of(traced(lambda: call(torch.ones(7), peer)))


def test_messages_name_the_peer() -> None:
    (sent,), (received,) = run_ranks(2, _messages)
    assert (sent["Collective name"], sent["In msg nelems"], sent["Rank"]) == ("send", 7, 1)
    assert (received["Collective name"], received["Out msg nelems"]) == ("recv", 7)
    assert received["Rank"] == 0


def _numbers(world: World) -> list[dict[str, Any]]:
    world.init()
    dist.all_reduce(torch.ones(1))

    def calls() -> None:
        for n in range(3):
            dist.all_reduce(torch.ones(1), async_op=n == 1)

    return comms_of(traced(calls))


@pytest.mark.skipif(not HAS_NUMBERS, reason="torch 2.12 is the first whose events have numbers")
def test_calls_are_numbered() -> None:
    for found in run_ranks(2, _numbers):
        assert [event["Seq"] for event in found] == [2, 3, 4]
        assert [event["Is asynchronized op"] for event in found] == [0, 1, 0]


def _on_devices(world: World) -> list[dict[str, Any]]:
    device = joined(world)
    given = torch.ones(200, device=device, dtype=torch.bfloat16)

    def calls() -> None:
        dist.all_reduce(given)
        dist.all_reduce(given, async_op=True).wait()
        if world.rank == 0:
            dist.send(given, 1)
        else:
            dist.recv(given, 0)
        torch.sim.synchronize()

    return comms_of(traced(calls))


@pytest.mark.usefixtures("simulated")
def test_calls_on_devices() -> None:
    for rank, found in enumerate(run_ranks(2, _on_devices, environment=SMALL)):
        keys = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Rank")
        assert [tuple(event[key] for key in keys) for event in found[:2]] == [
            ("allreduce", 200, 200, "BFloat16", rank)
        ] * 2
        assert all(event["Process Group Ranks"] == "[0, 1]" for event in found)
        assert found[2]["Collective name"] == ("send", "recv")[rank]

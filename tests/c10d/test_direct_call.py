"""Calls that do not come through c10d: prepared ones, and operators with types."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch, interrupted_in
from support.interrupts import interruptible
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World

import fastcomm
import fastcomm.distributed as fd
from fastcomm import errors

# Over shared memory, where ranks share none, and behind torch's checks.
WAYS = {**TRANSPORTS, "checked": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool)
SIZES = (0, 1, 6, 3000, 60000)  # elements a rank: in one step, and in blocks


def _mine(world: World, dtype: torch.dtype, elements: int, turn: int = 0) -> torch.Tensor:
    return (torch.arange(elements) % 3 + world.rank + turn).to(dtype)


Pairs = list[tuple[Callable[[], object], torch.Tensor, Callable[[], object], torch.Tensor]]


def _cases(world: World, dtype: torch.dtype, elements: int) -> Pairs:
    """A prepared call and its result, and torch's call and its result, of each operation."""
    part = _mine(world, dtype, elements)
    parts = torch.cat([part] * world.size)

    def pair(name: str, given: torch.Tensor, result: torch.Tensor, theirs: Any) -> None:
        in_place = given is result
        ours, expected = given.clone(), given.clone()
        out = ours if in_place else result.clone()
        other = expected if in_place else result.clone()
        tensors = (out,) if in_place else (out, ours)
        source = world.size - 1 if name == "broadcast" else None
        call = fastcomm.prepare(name, *tensors, group_src=source)
        found.append((call, out, lambda: theirs(other, expected), other))

    found: Pairs = []
    if dtype != torch.bool:
        pair("all_reduce", part, part, lambda out, _: dist.all_reduce(out))
        pair(
            "reduce_scatter_tensor",
            parts,
            part,
            lambda out, given: dist.reduce_scatter_tensor(out, given),
        )
    pair("broadcast", part, part, lambda out, _: dist.broadcast(out, world.size - 1))
    pair("all_gather_into_tensor", part, parts, dist.all_gather_into_tensor)
    pair("all_to_all_single", parts, parts.clone(), dist.all_to_all_single)
    return found


@on_ranks(1, 2, 3, environments=WAYS)
def test_prepared_calls_have_the_bits_of_c10d(world: World) -> None:
    world.init()
    barrier = fastcomm.prepare("barrier")
    over_gloo = os.environ.get("FASTCOMM_TRANSPORT") == "gloo"
    for dtype in DTYPES[:3] if over_gloo else DTYPES:  # torch's Gloo has no others
        for elements in SIZES:
            for call, ours, theirs, expected in _cases(world, dtype, elements):
                call()
                theirs()
                assert torch.equal(ours, expected), (dtype, elements)
                barrier()
                call.start()  # type: ignore[attr-defined]
                theirs()
                call.wait()  # type: ignore[attr-defined]
                assert torch.equal(ours, expected), (dtype, elements)


@on_ranks(3)
def test_ways_to_call_may_be_mixed(world: World) -> None:
    """On one rank and between ranks, with other calls in between."""
    world.init()
    tensor = torch.empty(5)
    ways: list[Callable[[], object]] = [
        lambda: dist.all_reduce(tensor),
        fastcomm.prepare("all_reduce", tensor),
        lambda: fd.all_reduce_(tensor),
        lambda: dist.all_reduce(tensor, async_op=True).wait(),
    ]
    for turn in range(40):
        tensor.fill_(world.rank + turn)
        ways[(turn + world.rank) % len(ways)]()
        assert tensor.tolist() == [3.0 * turn + 3] * 5
        if turn % 3 == 0:
            dist.barrier() if world.rank else fd.barrier()
        if turn % 7 == 0:
            fd.all_reduce_(torch.ones(7 + turn, dtype=torch.float64), "max")


@on_ranks(2)
def test_records_say_of_them_what_they_say_of_c10d_s_calls(world: World) -> None:
    world.init()
    part, whole = torch.ones(4), torch.empty(8)
    fd.all_gather_into(whole, part)
    dist.all_gather_into_tensor(whole, part)
    fd.reduce_scatter_into(part, whole, "max")
    dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.MAX)
    fd.broadcast_(part, 1)
    dist.broadcast(part, 1)
    fd.barrier()
    dist.barrier()
    said = [
        (call.operation, call.reduction, call.dtype, call.count, call.bytes, call.root)
        for call in fd.records()
    ][-8:]
    assert said[::2] == said[1::2], said


@on_ranks(2)
def test_a_profiler_sees_short_calls(world: World) -> None:
    world.init()
    call = fastcomm.prepare("all_reduce", torch.ones(4))
    call()
    with torch.profiler.profile() as profiled:
        call()
        fd.all_reduce_(torch.ones(4))
        fd.barrier()
    names = [event.name for event in profiled.events()]
    assert names.count("fastcomm:all_reduce") == 2 and names.count("fastcomm:barrier") == 1


@on_ranks(2)
def test_calls_of_continuations_have_an_order_of_their_own(world: World) -> None:
    """Rank 0 issues one before a barrier, rank 1 after it."""
    world.init()
    tensor = torch.ones(4)
    begun, met = threading.Event(), threading.Event()

    def step(_: Any) -> None:
        begun.set()
        assert world.rank == 0 or met.wait(60)
        fd.all_reduce_(tensor)

    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    future = work.get_future().then(step)
    if world.rank == 0:
        assert begun.wait(60)
        time.sleep(0.05)
    fd.barrier()
    met.set()
    future.wait()
    assert tensor.tolist() == [2.0] * 4


@on_ranks(2)
def test_tensors_may_change_between_two_calls(world: World) -> None:
    world.init()
    tensor = torch.ones(4)
    call = fastcomm.prepare("all_reduce", tensor)
    call()
    tensor.data = torch.full((4,), 3.0)  # other memory
    call()
    assert tensor.tolist() == [6.0] * 4
    tensor.resize_(100000).fill_(2.0)
    call()
    assert tensor[-1] == 4.0
    tensor.data = torch.ones(3, 2).t()  # not contiguous
    call()
    assert tensor.tolist() == [[2.0] * 3] * 2


@on_ranks(2, environments=TRANSPORTS)
def test_operators_with_types(world: World) -> None:
    world.init()
    group = dist.new_group()
    mine = torch.tensor([1.0, 2.0]) + world.rank
    whole, part = torch.empty(4), torch.empty(1)
    fd.all_gather_into(whole, mine, group)
    assert whole.tolist() == [1.0, 2.0, 2.0, 3.0]
    fd.reduce_scatter_into(part, mine, "max", group)
    assert part.tolist() == [2.0 + world.rank]
    fd.all_to_all_into(part := torch.empty(2), mine)
    assert part.tolist() == [1.0 + world.rank, 2.0 + world.rank]
    to_first, to_second = torch.empty(0), torch.empty(4)  # rank 1 gets everything
    own = to_second if world.rank else to_first
    fd.all_to_all_into(own, mine, [2, 2] if world.rank else [0, 0], [0, 2])
    assert own.tolist() == [1.0, 2.0, 2.0, 3.0][: own.numel()]
    fd.broadcast_(mine, 1, group)
    assert mine.tolist() == [2.0, 3.0]
    fd.all_reduce_(mine, "avg")
    assert mine.tolist() == [2.0, 3.0]
    fd.barrier(group)


@on_ranks(2)
def test_operators_with_types_are_traced(world: World) -> None:
    world.init()

    @torch.compile(fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        partial = tensor * 2
        fd.all_reduce_(partial)
        return partial + 1

    assert step(torch.ones(3) + world.rank).tolist() == [7.0] * 3


@on_ranks(2)
def test_what_compiled_code_does_not_read_is_reduced_all_the_same(world: World) -> None:
    """Or ranks that read different things would call different things."""
    world.init()

    @torch.compile(fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        unread = tensor * 2
        fd.all_reduce_(unread)
        fd.barrier()
        name = dist.group.WORLD.group_name
        gathered = torch.ops.fastcomm.all_gather(tensor, name)
        return unread if world.rank == 0 else gathered

    step(torch.ones(2))
    issued = [call.operation for call in fd.records()]
    assert issued[-3:] == ["all_reduce", "barrier", "all_gather_into_tensor"]


@on_ranks(2)
def test_arguments(world: World) -> None:
    world.init()
    tensor = torch.ones(4)
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: fastcomm.prepare("all_gather", tensor), "operation is one of all_reduce, "),
        (lambda: fastcomm.prepare("all_reduce"), r"takes 1 tensors \(tensor\), not 0"),
        (lambda: fastcomm.prepare("barrier", tensor), "takes 0 tensors, not 1"),
        (lambda: fastcomm.prepare("all_reduce", tensor, op="mean"), "not 'mean'"),
        (lambda: fastcomm.prepare("broadcast", tensor), "group_src is for a broadcast"),
        (lambda: fastcomm.prepare("all_reduce", tensor, group_src=0), "group_src is for a"),
        (lambda: fd.all_reduce_(tensor, "mean"), "not 'mean'"),
    ]
    for make, said in bad:
        with pytest.raises(ValueError, match=said):
            make()
    call = fastcomm.prepare("all_reduce", tensor)
    with pytest.raises(ValueError, match="all_reduce: the call was not started"):
        call.wait()
    call.start()
    with pytest.raises(ValueError, match="started before, and not waited for"):
        call.start()
    call.wait()
    wrong = fastcomm.prepare("all_gather_into_tensor", torch.empty(5), tensor)
    with pytest.raises(errors.CollectiveArgumentError, match="5 elements"):
        wrong()
    call()
    assert tensor.tolist() == [4.0] * 4
    dist.destroy_process_group()
    with pytest.raises(errors.FastcommError, match="was destroyed"):
        call()
    with pytest.raises(ValueError, match="no process group"):
        fd.barrier()
    with pytest.raises(ValueError, match="no process group"):
        fastcomm.prepare("barrier")


@on_ranks(2)
def test_groups_of_one_name_are_told_apart(world: World) -> None:
    """The second group takes the name of the first, which is gone."""
    for turn in range(3):
        world.init(name=f"store {turn}")
        tensor = torch.ones(2)
        torch.ops.fastcomm.all_reduce_(tensor, dist.group.WORLD.group_name)
        assert tensor.tolist() == [2.0] * 2
        dist.destroy_process_group()
    world.init("gloo", name="other")
    fd.all_reduce_(tensor := torch.ones(2))
    assert tensor.tolist() == [2.0] * 2
    call = fastcomm.prepare("all_reduce", tensor)
    call()
    assert tensor.tolist() == [4.0] * 2


# A call that another rank does not make, in each way.
def _ways(elements: int) -> dict[str, Callable[[], object]]:
    tensor = torch.ones(elements)
    prepared = fastcomm.prepare("all_reduce", tensor)
    compiled = torch.compile(lambda x: fd.all_reduce_(x), fullgraph=True, backend="eager")

    def started() -> None:
        prepared.start()
        prepared.wait()

    return {
        "operator": lambda: fd.all_reduce_(tensor),
        "compiled": lambda: compiled(tensor),
        "prepared": prepared,
        "started": started,
    }


WAY_NAMES = ("operator", "compiled", "prepared", "started")


@on_ranks(2)
def test_a_started_call_that_failed_is_over(world: World) -> None:
    world.init()
    call = fastcomm.prepare("all_reduce", torch.ones(4 + world.rank))
    call.start()
    assert catch(call.wait).kind == "CollectiveMismatchError"

    def again() -> None:
        call.start()
        call.wait()

    for later in (again, call):  # in the group's failure, not in "was not waited for"
        caught = catch(later)
        assert "FastcommError" in caught.bases, caught


@pytest.mark.parametrize("way", WAY_NAMES)
@on_ranks(2)
def test_mismatch(world: World, way: str) -> None:
    world.init()
    caught = catch(_ways(4 + world.rank)[way])
    assert caught.kind == "CollectiveMismatchError", caught
    assert (caught.operation, caught.rank) == ("all_reduce", world.rank)
    assert "4 elements" in caught.text
    assert "5 elements" in caught.text


@pytest.mark.parametrize("way", WAY_NAMES)
@on_ranks(2, environments=TRANSPORTS)
def test_timeout(world: World, way: str) -> None:
    """Counted anew by each call, also by one whose operation is used again."""
    world.init()
    call = _ways(4)[way]
    for _ in range(3):
        call()
    dist.barrier()
    assert dist.group.WORLD is not None
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    if world.rank == 0:
        caught = catch(call)
        world.tell("over")
        assert caught.kind == "CollectiveTimeoutError", caught
        assert 0.9 < caught.seconds < 20
    else:
        world.hear("over")


@on_ranks(2)
def test_timeout_of_a_prepared_call(world: World) -> None:
    world.init()
    if world.rank == 0:
        caught = catch(fastcomm.prepare("barrier", timeout=timedelta(milliseconds=300)))
        world.tell("over")
        assert caught.kind == "CollectiveTimeoutError", caught
        assert "300ms" in caught.text
    else:
        world.hear("over")


@pytest.mark.parametrize("way", WAY_NAMES)
@on_ranks(2)
def test_interrupt(world: World, way: str) -> None:
    world.init()
    call = _ways(4)[way]
    call()
    if world.rank == 0:
        with interruptible():
            caught = catch(interrupted_in, call)
        world.tell("over")
        assert caught.kind == "KeyboardInterrupt", caught
    else:
        world.hear("over")
        caught = catch(call)
        assert caught.kind == "GroupPoisonedError", caught
        assert "was interrupted in all_reduce" in caught.text

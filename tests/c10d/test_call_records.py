"""Calls as records that other processes read: of every operation, over either transport."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.namespaces import fork_apart, why_no_pids
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World, run_ranks

import fastcomm
from fastcomm import _native, distributed, errors
from fastcomm._records import layout
from fastcomm.distributed import Call

# By operation, for 3 ranks: the call; elements of rank 0's message, root.
CALLS: dict[str, tuple[Callable[[int, int], Any], int, int | None]] = {
    "all_reduce": (lambda r, n: dist.all_reduce(torch.ones(4, 2)), 8, None),
    "broadcast": (lambda r, n: dist.broadcast(torch.ones(5), 1), 5, 1),
    "reduce": (lambda r, n: dist.reduce(torch.ones(6), 2), 6, 2),
    "all_gather": (
        *(lambda r, n: dist.all_gather([torch.ones(2) for _ in range(n)], torch.ones(2)), 2),
        None,
    ),
    "all_gather_into_tensor": (
        *(lambda r, n: dist.all_gather_into_tensor(torch.ones(2 * n), torch.ones(2)), 2),
        None,
    ),
    "reduce_scatter": (
        *(lambda r, n: dist.reduce_scatter(torch.ones(7), [torch.ones(7) for _ in range(n)]), 7),
        None,
    ),
    "reduce_scatter_tensor": (
        *(lambda r, n: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * n)), 2),
        None,
    ),
    "all_to_all_single": (
        *(lambda r, n: dist.all_to_all_single(torch.ones(2 * n), torch.ones(2 * n)), 6),
        None,
    ),
    "gather": (
        lambda r, n: dist.gather(torch.ones(3), [torch.ones(3)] * n if r == 0 else None),
        3,
        0,
    ),
    "scatter": (
        lambda r, n: dist.scatter(torch.ones(3), [torch.ones(3)] * n if r == 0 else None),
        3,
        0,
    ),
    "barrier": (lambda r, n: dist.barrier(), 0, None),
}


@contextmanager
def issued_here() -> Iterator[list[Call]]:
    """Fill the list with the calls that are issued meanwhile."""
    before = {call.number for call in distributed.records()}
    found: list[Call] = []
    yield found
    found += [call for call in distributed.records() if call.number not in before]


def test_the_reader_has_the_writers_layout() -> None:
    for name, number in _native.load().records_layout().items():
        assert getattr(layout, name) == number, name


@on_ranks(3, environments=TRANSPORTS)
def test_each_operation(world: World) -> None:
    world.init()
    dist.barrier()
    for operation, (call, count, root) in CALLS.items():
        begin = time.monotonic_ns()
        with issued_here() as calls:
            call(world.rank, world.size)
        (found,) = calls
        assert (found.operation, found.count, found.root) == (operation, count, root), operation
        assert found.bytes == 4 * count and found.outcome == "ok"
        assert found.dtype == ("float32" if count else "none")
        reduces = "reduce" in operation
        assert found.reduction == ("sum" if reduces else "none")
        assert found.group is not None
        assert (found.group.rank, found.group.size) == (world.rank, 3)
        assert (found.group.name, found.group.members) == ("0", (0, 1, 2))
        assert found.ended is not None
        # Readings of two clocks: exact to some microseconds.
        slack = 200_000
        assert begin - slack <= found.issued <= found.ended <= time.monotonic_ns() + slack
        if found.engine == "shared memory":
            assert found.started is not None and found.path
            assert found.issued <= found.started <= found.ended
        else:
            assert found.engine == "Gloo"


@on_ranks(2, environments=TRANSPORTS)
def test_sequences_are_the_same_on_all_ranks(world: World) -> None:
    world.init()
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
        works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
    own = [call.sequence for call in distributed.records() if call.operation == "all_reduce"]
    assert own == list(range(own[0] or 0, (own[0] or 0) + 20))
    every: list[Any] = [None] * world.size
    dist.all_gather_object(every, own)
    assert every == [own] * world.size


@on_ranks(2, environments=TRANSPORTS)
def test_messages(world: World) -> None:
    world.init()
    other = 1 - world.rank
    with issued_here() as calls:
        if world.rank == 0:
            dist.send(torch.ones(3, dtype=torch.float64), 1, tag=7)
            work = dist.irecv(torch.ones(2), 1)
            assert work is not None
            work.wait()
        else:
            dist.recv(torch.ones(3, dtype=torch.float64), 0, tag=7)
            dist.send(torch.ones(2), 0)
    names = [(call.operation, call.peer, call.tag, call.count, call.dtype) for call in calls]
    order = ("send", "recv") if world.rank == 0 else ("recv", "send")
    assert names == [(order[0], other, 7, 3, "float64"), (order[1], other, 0, 2, "float32")]
    assert all(call.is_message and call.sequence is None for call in calls)
    assert all(call.outcome == "ok" for call in calls)


@on_ranks(2, environments=TRANSPORTS)
def test_an_open_call_is_seen_by_its_peer(world: World) -> None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        work = dist.irecv(torch.ones(2), 0, tag=3)
        assert work is not None
        dist.all_reduce(torch.ones(1))
        work.wait()
        return
    dist.all_reduce(torch.ones(1))
    ranks = distributed.records_of_job()
    assert [rank.number for rank in ranks] == [0, 1]
    assert ranks[0].pid == os.getpid() and ranks[0].snapshot.calls[-1].ended is not None
    (waiting,) = [call for call in ranks[1].snapshot.calls if call.operation == "recv"]
    assert waiting.ended is None and waiting.outcome is None and waiting.tag == 3
    dist.send(torch.ones(2), 1, tag=3)


@on_ranks(2)
def test_what_is_refused_has_ended(world: World) -> None:
    world.init()
    dist.barrier()
    with issued_here() as calls, pytest.raises(fastcomm.CollectiveArgumentError):
        dist.broadcast(torch.ones(3), 5)
    assert [(call.operation, call.outcome) for call in calls] == [
        ("broadcast", "CollectiveArgumentError")
    ]


@on_ranks(2, environments=TRANSPORTS)
def test_a_timeout(world: World) -> None:
    world.init()
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.barrier(group)
    if world.rank == 0:
        with issued_here() as calls, pytest.raises(fastcomm.CollectiveTimeoutError):
            dist.all_reduce(torch.ones(1), group=group)
        (late,) = calls
        assert late.outcome == "CollectiveTimeoutError" and late.ended is not None
        assert late.started is None
        assert 0.9e9 < late.ended - late.issued < 10e9
    dist.barrier()


@on_ranks(2)
def test_a_monitored_barrier(world: World) -> None:
    world.init()
    with issued_here() as calls:
        fastcomm.monitored_barrier()
    assert [(call.operation, call.outcome) for call in calls][-1] == ("barrier", "ok")


@on_ranks(2, environments=TRANSPORTS)
def test_what_continuations_issue_is_numbered_by_itself(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    with issued_here() as calls:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert work is not None
        work.get_future().then(lambda future: dist.all_reduce(torch.ones(2))).wait()
        dist.all_reduce(torch.ones(3))
    lanes = {call.count: (call.lane, call.sequence) for call in calls}
    assert lanes[2] == (1, 0)
    assert lanes[4][0] == lanes[3][0] == 0 and lanes[3][1] == (lanes[4][1] or 0) + 1


@on_ranks(2)
def test_groups_open_and_close(world: World) -> None:
    world.init()
    dist.barrier()
    own = dist.new_group([world.rank], use_local_synchronization=True)
    dist.all_reduce(torch.ones(1), group=own)
    alone = distributed.records()[-1].group
    assert alone is not None and (alone.size, alone.members) == (1, (world.rank,))
    both = distributed.records()[0].group
    assert both is not None and both.token != alone.token and both.closed is None
    tokens: list[Any] = [None, None]
    dist.all_gather_object(tokens, (both.token, alone.token))
    assert tokens[0][0] == tokens[1][0] and tokens[0][1] != tokens[1][1]
    dist.destroy_process_group(own)
    groups = [call.group for call in distributed.records() if call.group is not None]
    closed = {group.token: group.closed is not None for group in groups}
    assert closed == {both.token: False, alone.token: True}


@on_ranks(2)
def test_a_rank_that_is_late_is_named_by_trace(world: World) -> None:
    world.init()
    dist.barrier()
    file = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"trace-{os.getpid()}.json.gz")
    with fastcomm.trace(file if world.rank == 0 else None) as traced:
        for _ in range(30):
            time.sleep(0.03 * world.rank)  # more than a rank without a core may be late
            dist.all_reduce(torch.ones(100))
        dist.barrier()
    assert len(traced.calls) == 31 and traced.lost == 0
    assert "rank 1 is last" in str(traced)
    if world.rank == 0:
        assert os.path.getsize(file) > 0
        os.unlink(file)


def _asked_from_outside(world: World) -> list[tuple[int, bool]]:
    """Give rank 1 process numbers of its own, as a container does; ask as its host."""

    def play() -> list[tuple[int, bool]]:
        world.init()
        dist.all_reduce(torch.ones(1))
        ranks = distributed.records_of_job() if world.rank == 0 else []
        dist.all_reduce(torch.ones(1))
        return [(rank.number, rank.pid == rank.snapshot.pid) for rank in ranks]

    return fork_apart(play, None) if world.rank == 1 else play()


def test_a_rank_in_another_pid_namespace() -> None:
    if (reason := why_no_pids()) is not None:
        pytest.skip(reason)
    assert run_ranks(2, _asked_from_outside)[0] == [(0, True), (1, False)]


@on_ranks(1, environment={"FASTCOMM_RECORDS": "off"})
def test_records_may_be_off(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(1))
    with pytest.raises(fastcomm.UnsupportedError, match="FASTCOMM_RECORDS=off"):
        distributed.records()
    assert distributed.records_of_job() == []


def test_no_group_no_records() -> None:
    if _native.load().records_fd() is None:  # else this process has had one
        with pytest.raises(fastcomm.UnsupportedError, match="no process group"):
            distributed.records()


@on_ranks(2, environment={"FASTCOMM_WAIT_WARNING_S": "0"})
def test_a_timeout_says_what_the_missing_rank_does(world: World) -> None:
    world.init()
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.barrier(group)
    if world.rank == 0:
        with pytest.raises(fastcomm.CollectiveTimeoutError, match="not called it") as caught:
            dist.all_reduce(torch.ones(1), group=group)
        said = str(caught.value)
        assert re.search(r": in recv, for \d+(\.\d+)? s, (sleeping|running)", said), said
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    dist.barrier()


@on_ranks(1)
def test_outcomes_are_named_as_errors(world: World) -> None:
    world.init()
    fd = _native.load().records_fd()
    assert fd is not None
    names = layout.names_in(fd)["outcome"]
    assert [names[2 + code] for code in range(len(errors.BY_CODE))] == [
        each.__name__ for each in errors.BY_CODE
    ]

"""A rank that waits for long says on standard error whom it waits for; threads have names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from support.ranks import World, run_ranks

import fastcomm


def _said(world: World, rank: int) -> str:
    path = Path(world.directory, f"stderr{rank}")
    return path.read_text() if path.exists() else ""


def _until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "nothing was said"
        time.sleep(0.01)


def _until_more(world: World, before: dict[int, int]) -> None:
    _until(lambda: all(_said(world, rank).count("has waited") > n for rank, n in before.items()))


def _wait_of(call: str) -> None:
    tensor = torch.ones(5)
    if call == "async":
        dist.all_reduce(tensor, async_op=True).wait()
    elif call == "recv":
        dist.recv(tensor, 2)
    elif call == "send":  # more than goes without a receive
        dist.send(torch.ones(100_000), 2)
    elif call == "monitored_barrier":
        fastcomm.monitored_barrier()
    elif call == "barrier":
        dist.barrier()
    else:
        dist.all_reduce(tensor)


_CALLS = ("all_reduce", "async", "barrier", "monitored_barrier", "recv", "send")


def _waits(world: World) -> tuple[list[str], set[str]]:
    output = os.open(os.path.join(world.directory, f"stderr{world.rank}"), os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 2)
    others = range(world.size - 1)
    late = world.rank == world.size - 1
    if late:  # the group itself waits for it
        _until(lambda: all("creating a group" in _said(world, rank) for rank in others))
    world.init()
    for call in _CALLS:
        before = {rank: _said(world, rank).count("has waited") for rank in others}
        dist.barrier()
        if not late:
            _wait_of(call)
            continue
        _until_more(world, before)
        if call == "recv":
            for rank in others:
                dist.send(torch.ones(5), rank)
        elif call == "send":
            for rank in others:
                dist.recv(torch.empty(100_000), rank)
        else:
            _wait_of(call)
    if os.environ.get("FASTCOMM_TRANSPORT") == "gloo":  # nobody looks for who does not wait
        dist.barrier()
        return _said(world, world.rank).splitlines(), set()
    before = {rank: _said(world, rank).count("has waited") for rank in others}
    dist.barrier()
    if late:
        _until_more(world, before)
    pending = dist.all_reduce(torch.ones(5), async_op=True)  # nobody waits for it meanwhile
    if not late:
        while not pending.is_completed():
            time.sleep(0.01)
    pending.wait()
    names = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    dist.barrier()
    return _said(world, world.rank).splitlines(), names


def test_each_kind_of_wait_is_said() -> None:
    told = run_ranks(3, _waits, environment={"FASTCOMM_WAIT_WARNING_S": "0.1"})
    for rank, (lines, names) in enumerate(told[:2]):
        said = [line for line in lines if "has waited" in line]
        assert all(line.startswith(f"[rank{rank}]: fastcomm: group ") for line in said), said
        for word in ("creating a group", "all_reduce", "barrier", "recv", "send"):
            assert any(word in line for line in said), (word, said)
        calls = [line for line in said if "not arrived: rank 2" in line]
        assert len(calls) >= 4, said
        assert all("sequence" in line and "the timeout is " in line for line in calls)
        assert {"fc-progress", "fc-deathwatch"} <= names


def test_each_kind_of_wait_is_said_on_gloo() -> None:
    environment = {"FASTCOMM_WAIT_WARNING_S": "0.1", "FASTCOMM_TRANSPORT": "gloo"}
    told = run_ranks(3, _waits, environment=environment)
    for rank, (lines, _) in enumerate(told[:2]):
        said = [line for line in lines if "for Gloo" in line]
        for line in said:
            assert line.startswith(f"[rank{rank}]: fastcomm: group '0' of all 3 ranks: "), line
            assert "sequence" in line
        for word in ("all_reduce", "barrier", "monitored_barrier", "recv", "send"):
            assert any(f"{word}, sequence" in line for line in said), (word, said)


def _part_waits(world: World) -> str:
    output = os.open(os.path.join(world.directory, f"stderr{world.rank}"), os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 2)
    world.init()
    part = dist.group.WORLD.split_group([1, 2], None, None, "part")  # type: ignore[union-attr]
    if world.rank == 2:
        _until(lambda: "all_reduce" in _said(world, 1))
    if world.rank != 0:
        part.allreduce(torch.ones(5)).wait()
    dist.barrier()
    return _said(world, world.rank)


def test_a_part_of_a_group_has_its_name_too() -> None:
    said = run_ranks(3, _part_waits, environment={"FASTCOMM_WAIT_WARNING_S": "0.1"})[1]
    begin = "[rank1]: fastcomm: ranks [1, 2] of group '0' of all 3 ranks: "
    assert any(begin in line and "all_reduce" in line for line in said.splitlines()), said


def _silent(world: World) -> str:
    output = os.open(os.path.join(world.directory, f"stderr{world.rank}"), os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 2)
    world.init()
    if world.rank == 1:
        time.sleep(0.5)
    dist.barrier()
    return _said(world, world.rank)


def test_zero_says_nothing() -> None:
    told = run_ranks(2, _silent, environment={"FASTCOMM_WAIT_WARNING_S": "0"})
    assert not any("has waited" in text for text in told)

"""Warnings of long waits on standard error, and the ranks that they name; names of threads."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.direct import init
from support.patience import until
from support.ranks import World, run_ranks

import fastcomm


def _stderr(world: World, rank: int) -> str:
    path = Path(world.directory, f"stderr{rank}")
    return path.read_text() if path.exists() else ""


def _redirect_stderr(world: World) -> None:
    output = os.open(os.path.join(world.directory, f"stderr{world.rank}"), os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 2)


def _await_warnings(world: World, before: dict[int, int]) -> None:
    """Wait until each of these ranks has warned more often than before."""
    until(
        lambda: all(_stderr(world, rank).count("has waited") > n for rank, n in before.items()),
        "warnings of all who wait",
    )


def _run_call(call: str) -> None:
    tensor = torch.ones(5)
    if call == "async":
        dist.all_reduce(tensor, async_op=True).wait()
    elif call == "recv":
        dist.recv(tensor, 2)
    elif call == "send":  # too long to end without a receive
        dist.send(torch.ones(100_000), 2)
    elif call == "monitored_barrier":
        fastcomm.monitored_barrier()
    elif call == "barrier":
        dist.barrier()
    else:
        dist.all_reduce(tensor)


_CALLS = ("all_reduce", "async", "barrier", "monitored_barrier", "recv", "send")


def _waits(world: World) -> tuple[list[str], set[str]]:
    _redirect_stderr(world)
    others = range(world.size - 1)
    late = world.rank == world.size - 1
    if late:  # the others wait for it to form the group
        until(
            lambda: all("creating a group" in _stderr(world, rank) for rank in others), "warnings"
        )
    world.init()
    for call in _CALLS:
        before = {rank: _stderr(world, rank).count("has waited") for rank in others}
        dist.barrier()
        if not late:
            _run_call(call)
            continue
        _await_warnings(world, before)
        if call == "recv":
            for rank in others:
                dist.send(torch.ones(5), rank)
        elif call == "send":
            for rank in others:
                dist.recv(torch.empty(100_000), rank)
        else:
            _run_call(call)
    if os.environ.get("FASTCOMM_TRANSPORT") == "gloo":  # there only waits warn
        dist.barrier()
        return _stderr(world, world.rank).splitlines(), set()
    before = {rank: _stderr(world, rank).count("has waited") for rank in others}
    dist.barrier()
    if late:
        _await_warnings(world, before)
    pending = dist.all_reduce(torch.ones(5), async_op=True)
    if not late:  # is_completed() does not wait
        while not pending.is_completed():
            time.sleep(0.01)
    pending.wait()
    names = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    dist.barrier()
    return _stderr(world, world.rank).splitlines(), names


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
        said = [line for line in lines if "has waited" in line and "creating" not in line]
        for line in said:
            assert line.startswith(f"[rank{rank}]: fastcomm: group '0' of all 3 ranks: "), line
            assert "sequence" in line
        for word in ("all_reduce", "barrier", "monitored_barrier", "recv", "send"):
            assert any(f"{word}, sequence" in line for line in said), (word, said)
        assert any("; rank 2 (pid" in line and "operations, this rank" in line for line in said)
        assert any(" for rank 2 (pid" in line for line in said)


def _part_waits(world: World) -> str:
    _redirect_stderr(world)
    world.init()
    part = dist.group.WORLD.split_group([1, 2], None, None, "part")
    if world.rank == 2:
        until(lambda: "all_reduce" in _stderr(world, 1), "rank 1's warning")
    if world.rank != 0:
        part.allreduce(torch.ones(5)).wait()
    dist.barrier()
    return _stderr(world, world.rank)


def test_a_part_of_a_group_has_its_name_too() -> None:
    """The warning names the part's ranks, and the group that was split."""
    said = run_ranks(3, _part_waits, environment={"FASTCOMM_WAIT_WARNING_S": "0.1"})[1]
    begin = "[rank1]: fastcomm: ranks [1, 2] of group '0' of all 3 ranks: "
    assert any(begin in line and "all_reduce" in line for line in said.splitlines()), said


def _device_waits(world: World) -> list[str]:
    """The warning comes from a thread: neither the call nor wait() waits for a device."""
    _redirect_stderr(world)
    device = init(world)
    dist.all_reduce(torch.ones(3, device=device))
    torch.sim.synchronize()
    if world.rank == 1:
        until(lambda: "all_reduce" in _stderr(world, 0), "rank 0's warning")
    dist.all_reduce(data := torch.ones(3, device=device))
    assert data.tolist() == [2.0] * 3
    return _stderr(world, world.rank).splitlines()


@pytest.mark.usefixtures("simulated")
def test_a_wait_of_a_device_is_said() -> None:
    environment = {"FASTCOMM_WAIT_WARNING_S": "0.5", "FASTCOMM_CALL_SITES": "on"}
    (line,) = [
        line
        for line in run_ranks(2, _device_waits, environment=environment)[0]
        if "for its device" in line
    ]
    assert line.startswith("[rank0]: fastcomm: group '0' of all 2 ranks: [rank 0 of 2, all_reduce,")
    assert re.search(r"has waited for \S+ s for its device, at .*test_wait_warning.py:\d+: ", line)


def _silent(world: World) -> str:
    _redirect_stderr(world)
    world.init()
    if world.rank == 1:
        time.sleep(0.5)
    dist.barrier()
    return _stderr(world, world.rank)


def test_zero_says_nothing() -> None:
    told = run_ranks(2, _silent, environment={"FASTCOMM_WAIT_WARNING_S": "0"})
    assert not any("has waited" in text for text in told)

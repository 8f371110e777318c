"""A child of fork() whose parent had used shared memory is refused a group, and does not crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.ranks import World, run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")


def _in_a_child(body: Callable[[], object]) -> int:
    """Run ``body`` in a child and return its exit status: 7 if it returns True."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 7 if body() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _is_refused(function: Callable[..., object], *arguments: object) -> bool:
    told = catch(function, *arguments)
    return told.kind == "ForkedProcessError" and "spawn" in told.text


def _form_another(world: World, name: str) -> bool:
    """Form a group in place of the parent's."""
    if dist.is_initialized():
        dist.destroy_process_group()
    return _is_refused(world.init, None, name)


def _form_in_children(world: World) -> dict[str, int]:
    world.init()
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()  # now the progress thread runs
    ended = {
        # First: who destroys a group in a child takes its parent's FileStore away.
        "beside the parent's": _in_a_child(lambda: _is_refused(dist.new_group, [0, 1])),
        "while the parent's lives": _in_a_child(lambda: _form_another(world, "first")),
        "in a grandchild": _in_a_child(
            lambda: _in_a_child(lambda: _form_another(world, "third")) == 7
        ),
    }
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    ended["after the parent's"] = _in_a_child(lambda: _form_another(world, "last"))
    return ended


def test_a_child_is_refused_a_group_of_its_own() -> None:
    first, second = run_ranks(2, _form_in_children)
    assert first == second == dict.fromkeys(first, 7)


# The child's interpreter ends with the parent's group as it is: destructors and exit handlers run.
PROGRAM = """
import os, sys, torch, fastcomm
import torch.distributed as dist
rank, path = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(path, 2)
dist.init_process_group("fastcomm", store=store, rank=rank, world_size=2)
dist.all_reduce(torch.ones(3), async_op=True).wait()
child = os.fork()
if child == 0:
    if rank == 1 and (grandchild := os.fork()) != 0:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
sys.exit(status)
"""


def test_the_interpreter_of_a_child_ends(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")])
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [7, 7]
    finally:
        for rank in ranks:
            rank.kill()

"""A child of fork() is refused its parent's group and one of its own; its parent goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.forked import RIGHT, in_a_child
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")


def _is_refused(function: Callable[..., object], *arguments: object) -> bool:
    told = catch(function, *arguments)
    return told.kind == "ForkedProcessError" and "spawn" in told.text


USES: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: _is_refused(dist.all_reduce, torch.zeros(4)),
    "asynchronous": lambda: _is_refused(
        lambda: dist.all_reduce(torch.zeros(4), async_op=True).wait()
    ),
    "barrier": lambda: _is_refused(dist.barrier),
    "return": lambda: True,
    "destroy": lambda: dist.destroy_process_group() is None,
}


@on_ranks(2, environments=TRANSPORTS)
def test_a_child_gets_an_error_and_its_parent_goes_on(world: World) -> None:
    world.init()
    tensor = torch.ones(4)
    for _ in range(2):
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()  # now the progress thread runs
        ended = {how: in_a_child(use) for how, use in USES.items()}
        assert ended == dict.fromkeys(USES, RIGHT)
    assert tensor.tolist() == [16.0] * 4


def _form_another(world: World, name: str) -> bool:
    """Form a group in place of the parent's."""
    if dist.is_initialized():
        dist.destroy_process_group()
    return _is_refused(world.init, None, name)


@on_ranks(2)
def test_a_child_is_refused_a_group_of_its_own(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()  # now the progress thread runs
    ended = {
        # First: who destroys a group in a child takes its parent's FileStore away.
        "beside the parent's": in_a_child(lambda: _is_refused(dist.new_group, [0, 1])),
        "while the parent's lives": in_a_child(lambda: _form_another(world, "first")),
        "in a grandchild": in_a_child(
            lambda: in_a_child(lambda: _form_another(world, "third")) == RIGHT
        ),
    }
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    ended["after the parent's"] = in_a_child(lambda: _form_another(world, "last"))
    assert ended == dict.fromkeys(ended, RIGHT)


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

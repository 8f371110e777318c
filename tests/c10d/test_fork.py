"""A child of fork() whose parent had used shared memory is refused a group, and does not crash."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.ranks import World, run_ranks


def _form_in_a_child(world: World) -> int:
    world.init()
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    child = os.fork()
    if child == 0:
        told = catch(world.init, None, "of children")
        good = told.kind == "ForkedProcessError" and "spawn" in told.text
        os._exit(7 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_is_refused_a_group_of_its_own() -> None:
    assert run_ranks(2, _form_in_a_child) == [7, 7]

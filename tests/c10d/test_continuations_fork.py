"""Children of fork() beside continuations: what they find, and that they wait for no lock."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.forked import RIGHT, in_a_child
from support.on_ranks import on_ranks
from support.patience import ENDS, SOON
from support.ranks import World

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")

Future = Any


def _reduced() -> Future:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    return work.get_future()


def _has_no_group() -> bool:
    return catch(dist.all_reduce, torch.ones(1)).kind == "ForkedProcessError"


def _continues(seconds: float) -> bool:
    # A child that hangs or crashes says on standard error where.
    faulthandler.enable()
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(int(seconds))
    return bool(_reduced().then(lambda done: done.value()[0][0].item()).wait() == 1)


@on_ranks(2)
def test_a_child_made_in_a_continuation_has_no_group(world: World) -> None:
    world.init()
    assert _reduced().then(lambda done: in_a_child(_has_no_group)).wait() == RIGHT


@on_ranks(1)
def test_a_group_of_one_continues_in_a_child(world: World) -> None:
    world.init()
    _reduced().then(lambda done: None).wait()
    assert in_a_child(lambda: _continues(ENDS)) == RIGHT


@on_ranks(1)
def test_a_child_takes_no_lock_that_a_thread_of_its_parent_may_hold(world: World) -> None:
    """Fork while threads of the parent are likely to hold the locks of continuations.

    The other thread issues no operation, which would take the locks of the group.
    """
    world.init()
    over = threading.Event()
    reduced = _reduced()

    def attach() -> None:
        while not over.is_set():
            [reduced.then(lambda done: None) for _ in range(20)][-1].wait()

    other = threading.Thread(target=attach)
    other.start()
    ends = []
    reading, writing = os.pipe()
    for _ in range(100):
        child = os.fork()
        if child == 0:
            os.write(writing, b".")
            os._exit(RIGHT if _continues(SOON) else 1)
        # Before Python 3.12 a child may hang in fork() itself, at a lock of the other thread.
        if select.select([reading], [], [], 5.0)[0]:
            os.read(reading, 1)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            if ends[-1] != RIGHT:
                break
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    over.set()
    other.join()
    assert set(ends) == {RIGHT}, f"child {len(ends)} of those that began ended with {ends[-1:]}"
    assert len(ends) > 50, "too few children began"

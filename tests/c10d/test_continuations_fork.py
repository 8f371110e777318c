"""Children of fork() beside continuations: what they find, and that they wait for no lock."""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.patience import ENDS, SOON
from support.ranks import World, run_ranks

Future = Any


def _reduced() -> Future:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    return work.get_future()


def _forked(world: World) -> int:
    world.init()

    def fork(future: Future) -> int:
        child = os.fork()
        if child == 0:
            caught = catch(dist.all_reduce, torch.ones(1))
            os._exit(7 if caught.kind == "ForkedProcessError" else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    status: int = _reduced().then(fork).wait()
    return status


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_made_in_a_continuation_has_no_group() -> None:
    assert run_ranks(2, _forked) == [7, 7]


def _forked_alone(world: World) -> int:
    world.init()
    _reduced().then(lambda done: None).wait()
    child = os.fork()
    if child == 0:
        signal.alarm(int(ENDS))
        value = _reduced().then(lambda done: done.value()[0][0].item()).wait()
        os._exit(7 if value == 1 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_group_of_one_continues_in_a_child() -> None:
    assert run_ranks(1, _forked_alone) == [7]


def _forked_while_another_attaches(world: World) -> set[int]:
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
            signal.alarm(int(SOON))
            os.write(writing, b".")
            value = _reduced().then(lambda done: done.value()[0][0].item()).wait()
            os._exit(7 if value == 1 else 1)
        # Before Python 3.12 a child may hang in fork() itself, at a lock of the other thread.
        if select.select([reading], [], [], 5.0)[0]:
            os.read(reading, 1)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            if ends[-1] != 7:
                break
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    over.set()
    other.join()
    assert len(ends) > 50 or ends[-1] != 7, "too few children began"
    return set(ends)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_takes_no_lock_that_a_thread_of_its_parent_may_hold() -> None:
    assert run_ranks(1, _forked_while_another_attaches) == [{7}]

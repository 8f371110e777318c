"""Too little memory or too few descriptors: an error, or Gloo with a reason, on every rank."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import NONE, SMALL, enter, shared_memory_folder, why_no_mounts
from support.on_ranks import on_ranks
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks

import fastcomm

pytestmark = pytest.mark.serial  # mounts file systems, and fills one

MANY = 1 << 20  # elements, which are 4 MiB
GIB = 1 << 30


def _limit(name: str, value: int) -> None:
    """Lower a limit of this process; NOFILE and AS count from what is in use."""
    if name == "NOFILE":
        value += len(os.listdir("/proc/self/fd")) - 1  # listdir opens one itself
    if name == "AS":
        value += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = getattr(resource, f"RLIMIT_{name}")
    resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


def _use() -> dict[str, Any]:
    """Reduce in the default group and in a new one; return what serves the default group."""
    size, rank = dist.get_world_size(), dist.get_rank()
    for group in (dist.group.WORLD, dist.new_group()):
        for elements in (4, MANY):
            tensor = torch.full((elements,), float(rank + 1))
            dist.all_reduce(tensor, group=group)
            dist.all_reduce(tensor, group=group, async_op=True).wait()
            assert tensor[-1] == size * sum(range(1, size + 1))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return {"native": backend.native, "why": backend.why_not_native}


def _with_limit(world: World, name: str, value: int, limited: list[int]) -> dict[str, Any]:
    logging.getLogger("fastcomm").setLevel(logging.ERROR)
    if world.rank in limited:
        _limit(name, value)
    world.init()
    return _use()


@pytest.mark.parametrize("limited", [[0, 1, 2], [1]])
@pytest.mark.parametrize(("name", "value"), [("AS", GIB), ("AS", 6 * GIB), ("FSIZE", GIB // 8)])
def test_less_memory_is_shared_where_the_limit_of_a_rank_is_low(
    name: str, value: int, limited: list[int]
) -> None:
    reports = run_ranks(3, _with_limit, name, value, limited, environment={})
    assert all(report["native"] for report in reports), reports[0]["why"]


def test_too_little_for_shared_memory_means_gloo_with_a_reason() -> None:
    reports = run_ranks(2, _with_limit, "FSIZE", GIB // 1024, [1], environment={})
    for report in reports:
        assert not report["native"]
        assert "ulimit -f" in report["why"], report["why"]
        assert report["why"] == reports[0]["why"]


def test_no_memory_is_locked() -> None:
    """Groups share memory even if `ulimit -l` is 0."""
    assert all(report["native"] for report in run_ranks(2, _with_limit, "MEMLOCK", 0, [0, 1]))


def test_a_segment_within_the_limits_is_shared_memory() -> None:
    for name in ("AS", "FSIZE"):
        reports = run_ranks(
            2, _with_limit, name, GIB, [0, 1], environment={"FASTCOMM_SEGMENT_MB": "64"}
        )
        assert all(report["native"] for report in reports), reports[0]["why"]


def _with_few_descriptors(world: World, spare: int, limited: list[int]) -> Caught:
    logging.getLogger("fastcomm").setLevel(logging.ERROR)
    if world.rank in limited:
        _limit("NOFILE", spare)
    return catch(world.init)


@pytest.mark.parametrize(
    ("spare", "limited"),
    [*((spare, [0, 1, 2]) for spare in (1, 6, 12, 20)), (5, [0]), (5, [2])],
)
def test_too_few_descriptors_are_an_error_on_every_rank(spare: int, limited: list[int]) -> None:
    """Gloo would end the process instead."""
    for outcome in run_outcomes(3, _with_few_descriptors, spare, limited):
        assert outcome.exitcode == 0, outcome.error
        assert outcome.value.kind == "CommunicationSystemError", outcome.value
        assert "ulimit -n" in outcome.value.text, outcome.value
        assert outcome.value.seconds < SOON
        if len(limited) == 1:
            assert f"rank {limited[0]}: a group of 3 ranks needs" in outcome.value.text


@on_ranks(2, 6)
def test_what_the_error_asks_for_is_enough(world: World) -> None:
    _limit("NOFILE", 4 * world.size + 16 + 2)  # 2: a look at /proc, and one into the store
    world.init()
    dist.all_reduce(torch.ones(MANY))
    assert dist.group.WORLD._get_backend(torch.device("cpu")).native


@pytest.fixture(scope="module")
def namespaces() -> Any:
    if (reason := why_no_mounts()) is not None:
        pytest.skip(reason)
    with shared_memory_folder(SMALL) as small, shared_memory_folder(NONE) as none:
        yield {"small": small, "none": none}


def _with_folder(world: World, namespace: str) -> dict[str, Any]:
    logging.getLogger("fastcomm").setLevel(logging.ERROR)
    enter(namespace)
    world.init()
    return _use()


@pytest.mark.parametrize("transport", ["auto", "memfd", "posix"])
@pytest.mark.parametrize("folder", ["small", "none"])
def test_a_small_folder_or_none(namespaces: dict[str, str], folder: str, transport: str) -> None:
    """Gloo stands in for POSIX shared memory alone, and only without a /dev/shm."""
    reports = run_ranks(
        2, _with_folder, namespaces[folder], environment={"FASTCOMM_TRANSPORT": transport}
    )
    for report in reports:
        if (folder, transport) == ("none", "posix"):
            assert not report["native"]
            assert "shm_open" in report["why"]
        else:
            assert report["native"], report["why"]


def _fill(path: str) -> None:
    """Fill a file system with one file."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass


def _run_out(world: World, namespace: str, elements: int, how: str) -> list[Caught]:
    if world.rank == 0:
        enter(namespace)  # the others keep their /dev/shm
    world.init()
    dist.barrier()
    if world.rank == 0:
        _fill("/dev/shm/filler")
    try:
        dist.barrier()
        if how == "async":  # on rank 0 the call itself raises
            errors = [
                catch(dist.all_reduce(torch.ones(elements), async_op=True).wait)
                if world.rank != 0
                else catch(dist.all_reduce, torch.ones(elements), async_op=True)
            ]
        elif how == "empty":
            errors = [catch(fastcomm.empty, elements)] if world.rank == 0 else []
            dist.barrier()
        else:
            errors = [catch(dist.all_reduce, torch.ones(elements))]
    finally:
        if world.rank == 0:
            os.remove("/dev/shm/filler")
    return errors


@pytest.mark.parametrize("how", ["sync", "async", "empty"])
def test_a_folder_that_fills_up_is_an_error(namespaces: dict[str, str], how: str) -> None:
    """The rank that has no memory left raises; its peers do not hang."""
    told = run_ranks(
        3, _run_out, namespaces["small"], MANY, how, environment={"FASTCOMM_TRANSPORT": "posix"}
    )
    (own,) = told[0]
    assert own.kind == "CommunicationSystemError", own
    assert "FASTCOMM_TRANSPORT=memfd" in own.text, own
    for errors in told[1:]:
        assert [error.kind for error in errors] == (
            [] if how == "empty" else ["GroupPoisonedError"]
        )
        assert all(error.peer == 0 and error.seconds < SOON for error in errors), errors


@on_ranks(2, environment={"FASTCOMM_SEGMENT_MB": "24"})
def test_a_segment_that_is_used_up(world: World) -> None:
    """A tensor that does not fit is an error; a group that does not fit runs on Gloo."""
    logging.getLogger("fastcomm").setLevel(logging.ERROR)
    world.init()
    dist.all_reduce(torch.ones(MANY))
    held = [fastcomm.empty(1 << 10) for _ in range(5)]
    error = catch(fastcomm.empty, 16 << 20)
    for _ in range(64):  # how much a group takes depends on the processor's caches
        group = dist.new_group()
        dist.all_reduce(held[0].fill_(1), group=group)
        last = group._get_backend(torch.device("cpu"))
        if not last.native:
            break
    dist.all_reduce(torch.ones(MANY))
    assert error.kind == "CommunicationSystemError"
    assert "FASTCOMM_SEGMENT_MB" in error.text
    assert not last.native and "FASTCOMM_SEGMENT_MB" in last.why_not_native

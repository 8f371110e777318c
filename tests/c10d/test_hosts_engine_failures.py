"""Failures of calls over several hosts: mismatches, ranks that are late, groups that end early."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import Host
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks
from support.stores import join_hosts, join_over
from torch._C._distributed_c10d import ErrorType

pytestmark = pytest.mark.serial  # network namespaces

# What each rank calls: sizes, in elements of fp32.
UNLIKE = {
    "short": [10, 10, 11, 11],
    "early": [10_000, 10_000, 9_000, 9_000],  # as powers of two, equal
    "early of unequal lengths": [10_000, 10_000, 2_000, 2_000],
    "short and long": [10, 10, 100_000, 100_000],
    "long": [100_000, 100_000, 100_001, 100_001],
    "within a host": [100_000, 100_000, 100_000, 10],
}


def _unlike(world: World, hosts: list[Host], port: int, sizes: list[int]) -> Caught:
    join_hosts(world, hosts, port, "0011")
    dist.all_reduce(torch.ones(3))
    x = torch.full((sizes[world.rank],), 7.0)
    caught = catch(dist.all_reduce, x)
    assert x.unique().tolist() == [7.0]
    assert catch(dist.all_reduce, torch.ones(3)).kind == caught.kind
    return caught


def _unlike_moves(world: World, hosts: list[Host], port: int, what: str, who: int) -> Caught:
    """One rank calls with more elements; no tensor of any rank is touched."""
    join_hosts(world, hosts, port, "0011")
    dist.barrier()
    size = world.size
    count = (10 if "short" in what else 100_000) + (1 if world.rank == who else 0)
    part, whole = torch.full((count,), 7.0), torch.full((size * count,), 7.0)
    if "broadcast" in what:
        caught = catch(dist.broadcast, part, 0)
    elif "all_gather" in what:
        caught = catch(dist.all_gather_into_tensor, whole, part)
    else:
        caught = catch(dist.reduce_scatter_tensor, part, whole)
    if caught.kind == "CollectiveMismatchError":
        assert part.unique().tolist() == [7.0] and whole.unique().tolist() == [7.0]
    return caught


@pytest.mark.parametrize("who", [1, 2, 3])
@pytest.mark.parametrize("length", ["short", "long"])
@pytest.mark.parametrize("what", ["broadcast", "all_gather", "reduce_scatter"])
def test_other_calls_are_compared_too(hosts: list[Host], what: str, length: str, who: int) -> None:
    told = run_ranks(4, _unlike_moves, hosts, 29944, f"{length} {what}", who)
    assert [caught.kind for caught in told] == ["CollectiveMismatchError"] * 4, told


@pytest.mark.parametrize("case", UNLIKE)
def test_calls_are_compared_between_hosts(hosts: list[Host], case: str) -> None:
    for caught in run_ranks(4, _unlike, hosts, 29940, UNLIKE[case]):
        assert caught.kind == "CollectiveMismatchError", caught
        if "comes after the process group has failed" not in caught.text:
            assert (caught.operation, caught.sequence, caught.world_size) == ("all_reduce", 1, 4)
        assert "called all_reduce(sum, float32" in caught.text
        assert caught.seconds < SOON


def _late(world: World, hosts: list[Host], port: int, who: int) -> Caught | None:
    join_hosts(world, hosts, port, "0011")
    dist.all_reduce(torch.ones(3))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.set_timeout(timedelta(seconds=1.5))
    if world.rank == who:
        world.hear("given up")
        return None
    caught = catch(dist.all_reduce, torch.ones(100_000))
    if world.rank == (who + 1) % world.size:
        world.tell("given up")
    return caught


@pytest.mark.parametrize("who", [1, 2])
def test_a_timeout_names_the_rank_that_is_late(hosts: list[Host], who: int) -> None:
    told = run_ranks(4, _late, hosts, 29941, who)
    for caught in [one for one in told if one is not None]:
        assert caught.kind == "CollectiveTimeoutError", caught
        assert f"rank {who} (pid" in caught.text and "has issued 1 operation" in caught.text
        assert 1.4 < caught.seconds < 1.5 + SOON


def _again(world: World, hosts: list[Host], port: int) -> None:
    hosts[world.rank // 2].enter()
    for number in range(3):
        store = dist.TCPStore(hosts[0].address, port + number, world.size, world.rank == 0)
        join_over(store, world)
        dist.all_reduce(torch.ones(3))
        # Nobody waits, or too late.
        works = [dist.all_reduce(torch.ones(count), async_op=True) for count in (3, 100_000)]
        dist.destroy_process_group()
        for work in works:
            if (raised := raised_by(work.wait)) is not None:
                assert "this process group was destroyed" in raised or "rank " in raised


def raised_by(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


def test_groups_are_destroyed_and_made_again(hosts: list[Host]) -> None:
    run_ranks(4, _again, hosts, 29942)


def _leaves_early(world: World, hosts: list[Host], port: int) -> str:
    """Rank 0 ends, by an exception, while its call waits for the other host."""
    join_hosts(world, hosts, port, "0011")
    dist.all_reduce(torch.ones(3))
    if world.rank == 0:
        dist.all_reduce(torch.ones(100_000), async_op=True)
        time.sleep(0.3)
        raise ValueError("enough")
    if world.rank > 1:
        time.sleep(2)
    return catch(dist.all_reduce, torch.ones(100_000)).text


def test_a_rank_that_ends_waits_for_no_host(hosts: list[Host]) -> None:
    outcomes = run_outcomes(4, _leaves_early, hosts, 29943)
    assert outcomes[0].error is not None and "enough" in outcomes[0].error
    for outcome in outcomes[1:]:
        assert outcome.error is None, outcome.error
        assert "rank 0 (pid" in outcome.value, outcome.value


def _leaves_calls_behind(world: World, hosts: list[Host], port: int) -> str | None:
    """The ranks of the first host destroy the group while calls of theirs wait for the other."""
    join_hosts(world, hosts, port, "0011")
    dist.all_reduce(torch.ones(3))
    kept = dist.group.WORLD  # as a DistributedDataParallel does
    if world.rank < 2:
        out = torch.empty(4 * 1_000_000)
        dist.all_gather_into_tensor(out, torch.ones(1_000_000), async_op=True)
        time.sleep(0.3)
        dist.destroy_process_group()
        del out
        world.hear("told")
        assert kept is not None
        return None
    time.sleep(1)
    text = catch(dist.all_reduce, torch.ones(3)).text
    if world.rank == 2:
        world.tell("told")
    return text


def test_a_rank_that_leaves_calls_behind_tells_the_others(hosts: list[Host]) -> None:
    told = run_ranks(4, _leaves_calls_behind, hosts, 29945)
    for text in told[2:]:
        assert "destroyed its process group with 1 call under way" in text, text


def _ends_at_once(world: World, hosts: list[Host], port: int) -> None:
    """Rank 0 destroys the group as soon as its last call has returned."""
    hosts[world.rank // 2].enter()
    for number in range(8):
        store = dist.TCPStore(hosts[0].address, port + number, world.size, world.rank == 0)
        join_over(store, world)
        for count in (3, 100_000):
            dist.all_reduce(torch.ones(count))
        if world.rank != 0:  # the others hear of nothing but an orderly end
            time.sleep(0.1)
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            assert backend.get_error() == ErrorType.SUCCESS
        dist.destroy_process_group()


def test_a_call_that_has_returned_is_not_left_behind(hosts: list[Host]) -> None:
    run_ranks(4, _ends_at_once, hosts, 29950)


def _has_done_its_part(world: World, hosts: list[Host], port: int) -> float | None:
    """Rank 2 leaves calls behind while what it has sent for an earlier one is on its way."""
    join_hosts(world, hosts, port, "0011")
    dist.all_reduce(torch.ones(3))
    sent = torch.full((15_000,), float(world.rank))
    dist.barrier()
    dist.broadcast(sent, 2)
    if world.rank >= 2:
        dist.all_reduce(torch.ones(3), async_op=True)
        dist.destroy_process_group()
    return float(sent.sum())


def test_what_a_rank_has_done_before_it_left_is_enough(hosts: list[Host]) -> None:
    """The broadcast takes 0.3 s on the wire, which the root does not wait for."""
    rate = ["tbf", "rate", "1600kbit", "burst", "4k", "limit", "4m"]
    link = ["dev", hosts[1].interface, "root"]
    subprocess.run(hosts[1].command("tc", "qdisc", "add", *link, *rate), check=True)
    try:
        assert run_ranks(4, _has_done_its_part, hosts, 29970) == [30_000.0] * 4
    finally:
        subprocess.run(hosts[1].command("tc", "qdisc", "delete", *link), check=True)

"""Errors of send and recv, on both sides."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.patience import SOON
from support.ranks import World, run_ranks

pytestmark = pytest.mark.serial  # compares times

MISMATCHES = {
    "shorter": lambda: torch.zeros(3),
    "longer": lambda: torch.zeros(5),
    "dtype": lambda: torch.zeros(4, dtype=torch.int32),
    "long": lambda: torch.zeros(100_000),  # its send does not end without a receive
}


def _unlike(world: World, how: str, pauses: bool) -> tuple[list[Caught], list[float]]:
    world.init()
    dist.barrier()
    got = torch.full((4,), 9.0)
    if world.rank == 0:
        return [catch(dist.recv, got, 1), catch(dist.barrier)], got.tolist()
    if world.rank == 2:  # awaits what rank 0 never sends
        return [catch(dist.recv, got, 0), catch(dist.barrier)], got.tolist()
    caught = []
    if how == "long":
        caught.append(catch(dist.send, MISMATCHES[how](), 0))
    else:
        dist.send(MISMATCHES[how](), 0)
    if pauses:  # so that rank 0 finds the mismatch first
        time.sleep(0.3)
    caught.append(catch(dist.recv, got, 0))
    caught.append(catch(dist.send, got, 0))
    return caught, got.tolist()


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize("how", MISMATCHES)
def test_unlike_calls_are_a_mismatch_everywhere(how: str, pauses: bool) -> None:
    outcomes = run_ranks(3, _unlike, how, pauses)
    for caught, memory in outcomes:
        assert {error.kind for error in caught} == {"CollectiveMismatchError"}, caught
        assert memory == [9] * 4
        assert all(error.seconds < SOON for error in caught)
    first = outcomes[0][0][0]
    assert (first.operation, first.peer) == ("recv", 1)
    sent = MISMATCHES[how]()
    name = str(sent.dtype).removeprefix("torch.")
    assert "rank 0 called recv(float32, 4 elements) from rank 1, tag 0" in first.text
    assert f"rank 1 called send({name}, {sent.numel()} elements) to rank 0" in first.text
    assert f"send({name}, {sent.numel()} elements)" in outcomes[1][0][0].text


@on_ranks(2, group_timeout=0.4)
def test_a_timeout_lists_what_nobody_received(world: World) -> None:
    world.init()
    dist.barrier()
    if world.rank == 1:
        for tag in (3, 7):
            dist.send(torch.ones(1), 0, tag=tag)
        world.tell("sent")
        world.hear("given up")
        assert catch(dist.barrier).kind == "CollectiveTimeoutError"
        return
    world.hear("sent")
    caught = catch(dist.recv, torch.zeros(1), 1, tag=4)
    world.tell("given up")
    assert caught.kind == "CollectiveTimeoutError"
    assert "has sent tags [3, 7] that nobody received" in caught.text, caught.text


@on_ranks(2)
def test_a_peer_that_left(world: World) -> None:
    """A message sent before the departure arrives; a further receive fails."""
    world.init()
    dist.barrier()
    if world.rank == 1:
        dist.send(torch.ones(2), 0)
        dist.destroy_process_group()
        return time.sleep(1)  # the process stays alive
    time.sleep(0.3)
    x = torch.zeros(2)
    dist.recv(x, 1)
    assert x.tolist() == [1, 1]
    caught = catch(dist.recv, x, 1)
    assert (caught.kind, caught.peer) == ("PeerLeftError", 1), caught


@on_ranks(2)
def test_bad_arguments_harm_nothing(world: World) -> None:
    world.init()
    if world.rank == 0:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        caught = [
            catch(backend.send, [torch.zeros(1)], 1, -1),  # tag below 0
            catch(backend.send, [torch.zeros(1)], 7, 0),  # no such rank
            catch(backend.recv, [torch.zeros(1)], 0, 0),  # itself
            catch(backend.recv, [torch.zeros(1), torch.zeros(1)], 1, 0),  # two tensors
        ]
        assert [error.kind for error in caught] == ["CollectiveArgumentError"] * 4
    dist.barrier()  # the group goes on

"""A group that Gloo serves has the life of every other: its errors, its later calls, its end."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.patience import SOON
from support.ranks import World, run_ranks
from support.training import VARIANTS, train

pytestmark = pytest.mark.serial  # short times are compared

GLOO = {"FASTCOMM_TRANSPORT": "gloo"}


def _backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


@on_ranks(2, environment=GLOO, group_timeout=0.7)
def test_later_calls_name_themselves_and_the_failure(world: World) -> None:
    world.init()
    dist.all_reduce(torch.ones(4))
    if world.rank == 1:
        return world.hear("given up")
    first = catch(dist.all_reduce, torch.ones(4))
    later = {"broadcast": catch(dist.broadcast, torch.ones(9), 0)}
    waiting = dist.all_reduce(torch.ones(2), async_op=True)
    later["send"] = catch(dist.send, torch.ones(2), 1)
    assert _backend().get_error() == torch._C._distributed_c10d.ErrorType.TIMEOUT
    later["all_reduce"] = catch(waiting.wait)
    later["this call of all_reduce"] = catch(waiting.get_future().wait)
    world.tell("given up")
    for one in (first, *later.values()):
        assert (one.kind, one.rank, one.world_size) == ("CollectiveTimeoutError", 0, 2)
        assert (one.operation, one.sequence) == ("all_reduce", 1)
        assert "Gloo: Timed out waiting 700ms; rank 1 (pid" in one.text
        assert "has issued 1 operation, this rank 2." in one.text
    for name, one in later.items():
        assert f"{name} comes after the process group has failed" in one.text
        assert one.seconds < SOON


@on_ranks(2, environment=GLOO)
def test_wrong_arguments_harm_nothing(world: World) -> None:
    world.init()
    for caught in (
        catch(dist.send, torch.ones(2), world.rank),
        catch(dist.all_reduce, torch.ones(2, 2).to_sparse_csr()),
        catch(dist.all_gather_into_tensor, torch.ones(3), torch.ones(2)),
    ):
        assert "PeerLost" not in caught.kind and "System" not in caught.kind
    if world.rank == 0:  # a mistake of one rank alone is none that the others make
        catch(dist.all_gather_into_tensor, torch.ones(3), torch.ones(2))
    total = torch.ones(2)
    dist.all_reduce(total)  # the group is as it was
    assert total.tolist() == [2.0, 2.0]
    assert _backend()._get_sequence_number_for_group() == 1


@on_ranks(2, environment=GLOO)
def test_abort_ends_it_on_every_rank(world: World) -> None:
    world.init()
    dist.barrier()
    if world.rank == 0:
        time.sleep(0.2)
        _backend().abort()
        own = catch(dist.barrier)
        assert own.kind == "GroupPoisonedError" and "rank 0 called abort()" in own.text
    else:
        other = catch(dist.all_reduce, torch.ones(3))
        assert other.kind == "GroupPoisonedError" and other.peer == 0 and other.seconds < SOON
        assert "gave the group up: rank 0 called abort()" in other.text


@on_ranks(2, environment=GLOO)
def test_after_its_end_it_says_so_and_another_can_be_made(world: World) -> None:
    world.init()
    dist.barrier()
    backend = _backend()
    dist.destroy_process_group()
    caught = catch(lambda: backend.allreduce([torch.ones(2)]).wait())
    assert caught.kind == "GroupPoisonedError" and "was destroyed" in caught.text
    world.init(name="again")
    dist.barrier()


@on_ranks(2, environment=GLOO)
def test_what_has_begun_ends_well_although_the_group_is_destroyed(world: World) -> None:
    world.init()
    tensors = [torch.ones(100_000) for _ in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.destroy_process_group()
    for work in works:
        work.wait()
    assert all(tensor.eq(2).all() for tensor in tensors)


@on_ranks(2, environment=GLOO)
def test_a_message_that_has_arrived_outlives_its_sender(world: World) -> None:
    world.init()
    got = torch.zeros(100_000)
    if world.rank == 1:
        dist.send(torch.ones(100_000), 0)
        dist.destroy_process_group()
        world.tell("rank 1 has left")
        return
    work = dist.irecv(got, 1)
    world.hear("rank 1 has left")
    time.sleep(1.5)  # longer than anything that a departure is given
    assert work is not None
    work.wait()
    assert got.eq(1).all()


@on_ranks(3, environment=GLOO)
def test_who_waits_for_ranks_that_have_left_is_told(world: World) -> None:
    world.init()
    dist.barrier()
    if world.rank != 0:
        dist.destroy_process_group()
        return
    caught = catch(dist.recv, torch.zeros(4))  # from any
    assert caught.kind == "PeerLeftError" and caught.seconds < SOON


def _train(world: World) -> list[float]:
    world.init()
    return train(VARIANTS["default"], world.rank)[0]


def test_ddp_trains_with_the_losses_of_gloo() -> None:
    ours = run_ranks(2, _train, environment=GLOO)
    assert ours == run_ranks(2, _train, backend="gloo")


@on_ranks(2, environment=GLOO)
def test_coalescing(world: World) -> None:
    world.init()
    tensors = [torch.full((3,), float(world.rank + i)) for i in range(3)]
    with dist._coalescing_manager(async_ops=True) as block:
        for tensor in tensors:
            dist.all_reduce(tensor)
    block.wait()
    for i, tensor in enumerate(tensors):
        assert tensor.tolist() == [float(sum(range(world.size)) + i * world.size)] * 3

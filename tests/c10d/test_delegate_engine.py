"""A group that Gloo serves has the life of every other: its errors, its later calls, its end."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.patience import SOON
from support.ranks import World, run_ranks
from torch.nn.parallel import DistributedDataParallel

import fastcomm

pytestmark = pytest.mark.serial  # short times are compared

GLOO = {"FASTCOMM_TRANSPORT": "gloo"}


def _backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def _go_on_after_a_timeout(world: World) -> list[Caught]:
    world.init()
    dist.all_reduce(torch.ones(4))
    if world.rank == 1:
        world.hear("given up")
        return []
    first = catch(dist.all_reduce, torch.ones(4))
    later = catch(dist.broadcast, torch.ones(9), 0)
    waiting = dist.all_reduce(torch.ones(2), async_op=True)
    sending = catch(dist.send, torch.ones(2), 1)
    assert _backend().get_error() == torch._C._distributed_c10d.ErrorType.TIMEOUT
    caught = [first, later, catch(waiting.wait), catch(waiting.get_future().wait), sending]
    world.tell("given up")
    return caught


def test_later_calls_name_themselves_and_the_failure() -> None:
    caught = run_ranks(2, _go_on_after_a_timeout, group_timeout=0.7, environment=GLOO)[0]
    assert {one.kind for one in caught} == {"CollectiveTimeoutError"}
    for one in caught:
        assert (one.rank, one.world_size) == (0, 2)
        assert (one.operation, one.sequence) == ("all_reduce", 1)
        assert "Gloo: Timed out waiting" in one.text
    for one, name in zip(
        caught[1:], ["broadcast", "all_reduce", "all_reduce", "send"], strict=True
    ):
        assert f"this call of {name} comes after the process group has failed" in one.text
        assert one.seconds < SOON


def _argue(world: World) -> list[Caught]:
    world.init()
    caught = [
        catch(dist.send, torch.ones(2), world.rank),
        catch(dist.all_reduce, torch.ones(2, 2).to_sparse_csr()),
        catch(dist.all_gather_into_tensor, torch.ones(3), torch.ones(2)),
    ]
    total = torch.ones(2)
    dist.all_reduce(total)  # the group is as it was
    assert total.tolist() == [2.0, 2.0]
    return caught


def test_wrong_arguments_harm_nothing() -> None:
    for caught in run_ranks(2, _argue, environment=GLOO):
        assert not any("PeerLost" in one.kind or "System" in one.kind for one in caught)


def _one_does_not_come(world: World) -> list[Caught]:
    world.init()
    fastcomm.monitored_barrier()
    if world.rank == 1:
        world.hear("given up")
        return []
    barrier = catch(fastcomm.monitored_barrier, None, timedelta(seconds=0.5))
    caught = [barrier, catch(dist.barrier)]
    world.tell("given up")
    return caught


def test_a_monitored_barrier_names_who_is_missing() -> None:
    barrier, later = run_ranks(2, _one_does_not_come, environment=GLOO)[0]
    assert barrier.kind == later.kind == "CollectiveTimeoutError"
    assert "failed to pass monitoredBarrier" in barrier.text
    assert 0.45 < barrier.seconds < SOON
    assert later.seconds < SOON


def _all_reduce_of(backend: Any) -> None:
    backend.allreduce([torch.ones(2)]).wait()


def _abort(world: World) -> Caught:
    world.init()
    dist.barrier()
    if world.rank == 1:
        return catch(dist.all_reduce, torch.ones(3))
    time.sleep(0.2)
    _backend().abort()
    return catch(dist.barrier)


def test_abort_ends_it_on_every_rank() -> None:
    own, other = run_ranks(2, _abort, environment=GLOO)
    assert own.kind == "GroupPoisonedError" and "rank 0 called abort()" in own.text
    assert other.kind == "PeerLostError" and other.seconds < SOON


def _destroy(world: World) -> Caught:
    world.init()
    dist.barrier()
    backend = _backend()
    dist.destroy_process_group()
    caught = catch(_all_reduce_of, backend)
    world.init(name="again")
    dist.barrier()
    return caught


def test_after_its_end_it_says_so_and_another_can_be_made() -> None:
    for caught in run_ranks(2, _destroy, environment=GLOO):
        assert caught.kind == "GroupPoisonedError"
        assert "was destroyed" in caught.text


def _fork(world: World) -> str:
    world.init()
    dist.barrier()
    reader, writer = os.pipe()
    if os.fork() == 0:
        caught = catch(dist.all_reduce, torch.ones(2))
        os.write(writer, f"{caught.kind}: {caught.text}".encode())
        os._exit(0)
    os.close(writer)
    told = os.read(reader, 4096).decode()
    dist.barrier()
    return told


def test_a_forked_child_is_refused() -> None:
    for told in run_ranks(2, _fork, environment=GLOO):
        assert told.startswith("ForkedProcessError"), told


def _train(world: World) -> list[float]:
    world.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(world.rank + 1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 7)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


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

"""Operations between processes with a simulated device each, and what they should give."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support import places
from support.caught import catch
from support.patience import OPERATION
from support.ranks import World
from support.tree import same_bits
from support.values import cancelling, special
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import fastcomm
from fastcomm._gradients import fused, shards

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8]
# Several rounds for most messages; one launch for a few.
SMALL = {"FASTCOMM_WINDOW_BYTES": "4096", "FASTCOMM_ONE_SHOT_BYTES": "1024"}
ON_DEVICES = "reach each other's memory: they meet"
ON_HOST = "share pinned memory of the host: they meet"


def init(world: World) -> torch.device:
    """Join the default group, with a device of this rank's own; return it."""
    import sim

    sim.load()
    device = torch.device("sim", world.rank)
    torch.sim.set_device(device)
    world.init("cpu:fastcomm,sim:fastcomm")
    return device


def joined(world: World) -> torch.device:
    """Join, and agree on what serves the devices; return this rank's."""
    device = init(world)
    dist.all_reduce(torch.ones(1, device=device))
    return device


def joined_on(world: World, kind: str) -> torch.device:
    """Join, and agree on what serves the devices; from then on nothing goes through the host."""
    places.join(kind)
    module = torch.get_device_module(kind)
    device = torch.device(kind, world.rank % module.device_count())
    module.set_device(device)
    world.init("fastcomm" if kind == "cuda" else f"cpu:fastcomm,{kind}:fastcomm")
    if kind != "cuda":  # since "fastcomm" alone is for "cpu" and "cuda"
        dist.group.WORLD._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    data = torch.ones(1, device=device)
    dist.all_reduce(data)
    assert is_direct(data), fastcomm.explain("all_reduce", data).reason
    never_by_the_host()
    return device


def is_direct(
    tensor: torch.Tensor, operation: str = "all_reduce", way: str = ON_DEVICES, op: str = "sum"
) -> bool:
    """Tell whether our kernels serve an operation, in windows there."""
    return way in fastcomm.explain(operation, tensor, op=op).reason


def _values(dtype: torch.dtype, count: int, rank: int, seed: int) -> torch.Tensor:
    if dtype.is_complex:
        return torch.view_as_complex(cancelling(torch.float32, 2 * count, rank, seed).view(-1, 2))
    if not dtype.is_floating_point:
        return cancelling(dtype, count, rank, seed)
    values = torch.cat([special(dtype, rank), cancelling(dtype, count, rank, seed)])
    return values[:count].clone()


# Returns a tensor with the values of another one, of two dimensions, and the memory to compare.
Place = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def plain(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor itself."""
    return values, values


def strided(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every second column of a larger tensor, transposed."""
    rows, columns = values.shape
    memory = values.new_full((columns, 2 * rows + 1), 3)
    view = memory.t()[1::2]
    view.copy_(values)
    return view, memory


def turned(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a view that negates its memory, which has gaps too."""
    view, memory = strided(values)
    return torch._neg_view(view), memory


def shared(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in memory that all ranks have mapped."""
    there = fastcomm.empty(values.shape, dtype=values.dtype, device=values.device)
    assert fastcomm.is_shared(there) or values.numel() == 0
    there.copy_(values)
    return there, there


class Maker:
    """Makes a rank's tensors for every operation, and remembers the memory that they lie in."""

    def __init__(
        self, world: World, device: torch.device, dtype: torch.dtype, columns: int, place: Place
    ) -> None:
        self.world = world
        self.device = device
        self.dtype = dtype
        self.columns = columns
        self.place = place
        self.memory: list[torch.Tensor] = []

    def __call__(self, rows: int = 1) -> torch.Tensor:
        """Return values that cancel, others for each call; some are special."""
        count = rows * self.columns
        values = _values(self.dtype, count, self.world.rank, len(self.memory))
        tensor, memory = self.place(values.view(rows, self.columns).to(self.device))
        self.memory.append(memory)
        return tensor

    def parts(self) -> list[torch.Tensor]:
        """Return a tensor for each rank, in one run."""
        return list(self(self.world.size).chunk(self.world.size))

    def each(self) -> list[torch.Tensor]:
        """Return a tensor for each rank, anywhere."""
        return [self() for _ in range(self.world.size)]


def _reductions(world: World, make: Maker) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        dist.all_reduce(make(), op=op)
        dist.reduce(make(), world.size - 1, op=op)
        dist.reduce_scatter_tensor(make(), make(world.size), op=op)
        dist.reduce_scatter(make(), make.parts(), op=op)
        dist.reduce_scatter(make(), make.each(), op=op)


def _copies(world: World, make: Maker) -> None:
    dist.all_gather_into_tensor(make(world.size), make())
    dist.all_gather(make.parts(), make())
    dist.all_gather(make.each(), make())
    dist.all_gather([make(1 + rank) for rank in range(world.size)], make(1 + world.rank))
    dist.broadcast(make(), world.size // 2)
    root = world.rank == 1
    dist.gather(make(), make.each() if root else None, 1)
    dist.scatter(make(), make.each() if root else None, 1)


def _exchanges(world: World, make: Maker) -> None:
    size = world.size
    dist.all_to_all(make.each(), make.each())
    dist.all_to_all_single(make(size), make(size))
    sent = [[rank + peer for peer in range(size)] for rank in range(size)]
    sizes = [row[world.rank] for row in sent], sent[world.rank]
    dist.all_to_all_single(make(sum(sizes[0])), make(sum(sizes[1])), *sizes)
    after, before = (world.rank + 1) % size, (world.rank - 1) % size
    for rows in (1, 6):  # in a cell of the ring, and in pieces
        mine, received = make(rows), make(rows)
        if world.rank == 0:
            dist.send(mine, after)
            dist.recv(received, before)
        else:
            dist.recv(received, before)
            dist.send(mine, after)
    both = [dist.P2POp(dist.isend, make(), after), dist.P2POp(dist.irecv, make(), before)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def _coalesced(world: World, make: Maker) -> None:
    for asynchronous in (False, True):
        with dist._coalescing_manager(device=make.device, async_ops=asynchronous) as manager:
            for _ in range(3):
                dist.all_reduce(make())
        if asynchronous:
            manager.wait()
    with dist._coalescing_manager(device=make.device):
        for _ in range(3):
            dist.all_gather_into_tensor(make(world.size), make())
    with dist._coalescing_manager(device=make.device):
        for _ in range(3):
            dist.reduce_scatter_tensor(make(), make(world.size))


OPERATIONS = (_reductions, _copies, _exchanges, _coalesced)


def memory_after(
    operation: Callable[[World, Maker], None],
    world: World,
    device: torch.device,
    dtype: torch.dtype,
    count: int,
    place: Place = plain,
) -> list[torch.Tensor]:
    """Return all memory after some operations on tensors with rows of ``count`` elements."""
    make = Maker(world, device, dtype, count, place)
    operation(world, make)
    assert all(each.device == device for each in make.memory)
    return [each.cpu() for each in make.memory]


def check_bits(
    world: World,
    device: torch.device,
    dtype: torch.dtype,
    count: int,
    place: Place = plain,
    on_cpu: Place = plain,
) -> None:
    """Compare all memory after every operation on a device with the same on the CPU."""
    for operation in OPERATIONS:
        there = memory_after(operation, world, device, dtype, count, place)
        here = memory_after(operation, world, torch.device("cpu"), dtype, count, on_cpu)
        for found, expected in zip(there, here, strict=True):
            assert same_bits(found, expected), (operation.__name__, dtype, count)


def never_by_the_host() -> None:
    """From now on fail where a list of tensors goes by way of the host's memory."""

    reduce_list = fused.reduce_list

    def checked(tensors: list[torch.Tensor], *given: Any, **options: Any) -> Any:
        result = reduce_list(tensors, *given, **options)
        # What was found out lies where the tensors were reduced.
        assert all(each.device == result.found_inf.device for each in tensors), "by the host"
        return result

    fused.reduce_list = shards.reduce_list = checked  # type: ignore[attr-defined]


def reason_and_sum(world: World) -> tuple[str, list[float]]:
    """Return why all_reduce goes the way it goes, and what it gives, twice, for 1, 2, 3, ..."""
    device = init(world)
    data = torch.full((3,), float(world.rank + 1), device=device)
    for _ in range(2):
        dist.all_reduce(data)
    return fastcomm.explain("all_reduce", data).reason, data.tolist()


def small_net() -> nn.Module:
    """Return a model that is the same on every rank."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2)
    )


def train(world: World, model: nn.Module, device: torch.device, steps: int = 4) -> None:
    """Train on each rank's own batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(10 * step + world.rank)
        optimizer.zero_grad()
        model(torch.randn(5, 6).to(device)).square().mean().backward()
        optimizer.step()


def note_bucket(buckets, bucket):  # type: ignore[no-untyped-def]  # torch would refuse annotations that are strings
    """Note whether all ranks have mapped a bucket, as a hook of stock DDP; then reduce it."""
    buckets.append(fastcomm.is_shared(bucket.buffer()))
    return allreduce_hook(None, bucket)


def weights(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters on the CPU, each as a whole."""
    found = []
    for parameter in model.parameters():
        data: Any = parameter.detach()
        found.append((data.full_tensor() if hasattr(data, "full_tensor") else data).cpu())
    return found


def train_ddp_on_both(world: World, device: torch.device, **options: Any) -> None:
    """Train stock DDP on the CPU and on a device, and compare the weights."""
    nets = [small_net(), small_net().to(device)]
    for net, place in zip(nets, (torch.device("cpu"), device), strict=True):
        train(world, nn.parallel.DistributedDataParallel(net, **options), place)
    assert all(map(same_bits, *map(weights, nets)))


def wait_that_expires(world: World, device: torch.device) -> None:
    """Wait with a timeout, which is the host's and harms nothing."""
    dist.all_reduce(data := torch.ones(2, device=device))
    if world.rank == 1:
        world.hear("expired")
    work: Any = dist.all_reduce(data, async_op=True)
    if world.rank == 0:
        caught = catch(work.wait, timedelta(milliseconds=200))
        assert caught.kind == "CollectiveTimeoutError" and "the operation goes on" in caught.text
        world.tell("expired")
        assert work.wait(timedelta(seconds=OPERATION)) and work.is_completed() and work.is_success()
    work.wait()
    assert data.tolist() == [4.0, 4.0]

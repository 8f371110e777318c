"""Tensors on simulated devices, in a native group: the bits of the same tensors on the CPU.

Through the host's memory, or by kernels that use the memory of each other's devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import sim
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks
from support.tree import same_bits
from support.values import cancelling
from torch import nn

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")

ROWS, COLUMNS = 6, 700
BLOCKS = {"FASTCOMM_ONE_SHOT_BYTES": "1024", "FASTCOMM_BLOCK_BYTES": "4096"}
HOST = {"FASTCOMM_ROUTE": "nccl", **BLOCKS}
ROUNDS = {"FASTCOMM_WINDOW_BYTES": "8192", **BLOCKS}  # several for each message
ROUTES = pytest.mark.parametrize("route", [HOST, ROUNDS], ids=["host", "direct"])


class Maker:
    """Makes tensors on a device, and remembers the memory that they are views of."""

    def __init__(self, device: torch.device, form: str, dtype: torch.dtype) -> None:
        self.device = device
        self.form = form
        self.dtype = dtype
        self.bases: list[torch.Tensor] = []

    def tensor(self, seed: int, rows: int = ROWS) -> torch.Tensor:
        """Return values that cancel, or the same values at other places of a larger memory."""
        count = rows * COLUMNS
        if self.dtype.is_complex:
            parts = cancelling(torch.float32, 2 * count, seed)
            values = torch.view_as_complex(parts.view(rows, COLUMNS, 2))
        else:
            values = cancelling(self.dtype, count, seed).view(rows, COLUMNS)
        if self.form == "plain":
            base = view = values.to(self.device)
        else:
            base = torch.full((COLUMNS, 2 * rows + 1), 3, dtype=self.dtype).to(self.device)
            view = base.t()[1::2]
            view.copy_(values)
        if self.form == "turned":
            view = torch._neg_view(view)
        self.bases.append(base)
        return view

    def tensors(self, seed: int, count: int) -> list[torch.Tensor]:
        return [self.tensor(seed + 10 * each) for each in range(count)]


def _init(world: World) -> torch.device:
    sim.load()
    world.init("cpu:fastcomm,sim:fastcomm")
    backend = fastcomm._distributed.backend.backend_of()
    assert backend is not None and backend.native
    return torch.device("sim", world.rank + 3)


def _all_reduce(world: World, make: Maker) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        dist.all_reduce(make.tensor(world.rank), op=op)


def _broadcast_and_reduce(world: World, make: Maker) -> None:
    for root in range(world.size):
        dist.broadcast(make.tensor(world.rank), root)
        dist.reduce(make.tensor(world.rank), root)


def _all_gather(world: World, make: Maker) -> None:
    dist.all_gather(make.tensors(7, world.size), make.tensor(world.rank))
    dist.all_gather_into_tensor(make.tensor(7, world.size * ROWS), make.tensor(world.rank))


def _reduce_scatter(world: World, make: Maker) -> None:
    dist.reduce_scatter(make.tensor(7), make.tensors(world.rank, world.size))
    dist.reduce_scatter_tensor(make.tensor(7), make.tensor(world.rank, world.size * ROWS))


def _gather_and_scatter(world: World, make: Maker) -> None:
    for root in range(world.size):
        parts = make.tensors(7 + world.rank, world.size) if world.rank == root else None
        dist.gather(make.tensor(world.rank), parts, root)
        dist.scatter(make.tensor(world.rank), parts, root)


def _all_to_all(world: World, make: Maker) -> None:
    size = world.size
    dist.all_to_all(make.tensors(7, size), make.tensors(world.rank, size))
    dist.all_to_all_single(make.tensor(7, size * ROWS), make.tensor(world.rank, size * ROWS))
    sent = [[1 + rank + peer for peer in range(size)] for rank in range(size)]
    received = [row[world.rank] for row in sent]
    dist.all_to_all_single(
        make.tensor(7, sum(received)),
        make.tensor(world.rank, sum(sent[world.rank])),
        received,
        sent[world.rank],
    )


def _messages(world: World, make: Maker) -> None:
    peer = 1 - world.rank
    for rows in (1, ROWS):  # in a cell of the ring, and in pieces
        sent, received = make.tensor(world.rank, rows), make.tensor(7, rows)
        if world.rank == 0:
            dist.send(sent, peer)
            dist.recv(received, peer)
        else:
            assert dist.recv(received) == peer
            dist.send(sent, peer)
    both = [
        dist.P2POp(dist.isend, make.tensor(world.rank), peer),
        dist.P2POp(dist.irecv, make.tensor(7), peer),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def _coalesced(world: World, make: Maker) -> None:
    tensors = make.tensors(world.rank, 3)
    for asynchronous in (False, True):
        with dist._coalescing_manager(device=make.device, async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
    wholes = [make.tensor(7, world.size * ROWS) for _ in tensors]
    with dist._coalescing_manager(device=make.device):
        for whole, tensor in zip(wholes, tensors, strict=True):
            dist.all_gather_into_tensor(whole, tensor)
    with dist._coalescing_manager(device=make.device):
        for whole, tensor in zip(wholes, tensors, strict=True):
            dist.reduce_scatter_tensor(tensor, whole)


OPERATIONS: list[Callable[[World, Maker], None]] = [
    _all_reduce,
    _broadcast_and_reduce,
    _all_gather,
    _reduce_scatter,
    _gather_and_scatter,
    _all_to_all,
    _messages,
    _coalesced,
]


def _operations(world: World) -> None:
    device = _init(world)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        for form in ("plain", "strided", "turned"):
            if form == "turned" and dtype == torch.complex64:
                continue
            for operation in OPERATIONS:
                here = Maker(torch.device("cpu"), form, dtype)
                there = Maker(device, form, dtype)
                for make in (here, there):
                    operation(world, make)
                for ours, expected in zip(there.bases, here.bases, strict=True):
                    assert ours.device == device
                    assert same_bits(ours.cpu(), expected), (operation.__name__, dtype, form)


@ROUTES
def test_each_operation_gives_the_bits_of_the_cpu(route: dict[str, str]) -> None:
    run_ranks(2, _operations, environment=route)


def _later(world: World) -> None:
    device = _init(world)
    inputs = [cancelling(torch.float32, 5000, rank) for rank in range(world.size)]
    reference = inputs[world.rank].clone()
    dist.all_reduce(reference)
    data = inputs[world.rank].to(device)
    work = dist.all_reduce(data, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    work.wait()
    assert same_bits(data.cpu(), reference)
    assert work.is_success() and work.result()[0].data_ptr() == data.data_ptr()
    assert future.wait()[0].data_ptr() == data.data_ptr()
    assert same_bits(doubled.wait().cpu(), reference * 2) and doubled.wait().device == device
    received = torch.zeros(5000, device=device)
    works = [dist.isend(data, 1 - world.rank), dist.irecv(received, 1 - world.rank)]
    for each in works:
        assert each is not None
        each.wait()
    values = works[1].get_future().wait()
    assert same_bits(values[0].cpu(), reference) and values[0].device == device


@ROUTES
def test_works_and_futures_have_the_tensors_of_the_device(route: dict[str, str]) -> None:
    run_ranks(2, _later, environment=route)


def _places(world: World) -> None:
    device = _init(world)
    torch.sim.set_device(7)
    data = torch.ones(4, device=device)
    dist.all_reduce(data)
    assert data.device == device and data.tolist() == [2] * 4
    # One rank's tensor on its device, the other's on the CPU.
    mixed = torch.full((4,), world.rank + 1.0, device=device if world.rank == 0 else "cpu")
    dist.all_reduce(mixed)
    assert mixed.tolist() == [3] * 4
    # And both among the tensors of one call.
    outputs = [torch.zeros(4, device=place) for place in ("cpu", "sim:6")]
    dist.all_gather(outputs, data)
    assert all(output.tolist() == [2] * 4 for output in outputs)
    assert [output.device for output in outputs] == [torch.device("cpu"), torch.device("sim:6")]
    whole = torch.zeros(8, device=device)
    part = whole[4 * world.rank :][:4]
    part.fill_(world.rank + 1)
    dist.all_gather_into_tensor(whole, part)  # in place
    assert whole.tolist() == [1] * 4 + [2] * 4
    dist.reduce_scatter_tensor(part, whole)
    assert part.tolist() == [2.0 * (world.rank + 1)] * 4
    with torch.inference_mode():
        data = torch.ones(4, device=device)
        work = dist.all_reduce(data, async_op=True)
        work.wait()
        assert data.is_inference() and data.tolist() == [2] * 4
    leaf = torch.ones(4, device=device, requires_grad=True)
    dist.broadcast(leaf, 0)
    dist.barrier(device_ids=[device.index])
    objects: list[object] = [None, None]
    dist.all_gather_object(objects, {"rank": world.rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    assert torch.sim.current_device() == 7


def test_tensors_of_several_places() -> None:
    run_ranks(2, _places, environment=HOST)


def _bad_input(world: World) -> None:
    device = _init(world)
    data, whole = torch.ones(4, device=device), torch.zeros(8, device=device)
    with pytest.raises(ValueError, match="output has 7 elements, which are not 2 times the 4"):
        dist.all_gather_into_tensor(whole[:7], data)
    with pytest.raises(ValueError, match="dtype Int, the input Float"):
        dist.all_gather_into_tensor(whole.int(), data)
    with pytest.raises(ValueError, match="share memory, as those of expand"):
        dist.all_reduce(data[:1].expand(4))
    factor = torch.ones(1, device=device)
    with pytest.raises(ValueError, match=f"factor is a tensor on {device}, not on the CPU"):
        dist.all_reduce(data, op=dist._make_nccl_premul_sum(factor))
    dist.all_reduce(data)  # nothing was sent
    assert data.tolist() == [2] * 4
    longer = torch.ones(4 + world.rank, device=device)
    with pytest.raises(fastcomm.CollectiveMismatchError, match="5 elements"):
        dist.all_reduce(longer)
    assert longer.tolist() == [1] * (4 + world.rank)


def test_what_does_not_fit_is_refused() -> None:
    run_ranks(2, _bad_input, environment=HOST)


def _late(world: World) -> None:
    device = _init(world)
    data = torch.ones(4, device=device)
    if world.rank == 0:
        with pytest.raises(fastcomm.CollectiveTimeoutError, match="rank 1"):
            dist.all_reduce(data)
        assert data.tolist() == [1] * 4
    else:
        time.sleep(2)


def test_a_timeout_leaves_the_tensor_alone() -> None:
    run_ranks(2, _late, group_timeout=1, environment=HOST)


def _ddp(world: World) -> None:
    device = _init(world)
    gradients = []
    for place in (torch.device("cpu"), device):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5))
        model = nn.parallel.DistributedDataParallel(net.to(place), find_unused_parameters=True)
        for step in range(3):
            torch.manual_seed(10 * step + world.rank)
            model(torch.randn(2, 3, 8, 8).to(place)).square().mean().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    for here, there in zip(*gradients, strict=True):
        assert here is not None and there is not None
        assert there.device == device and same_bits(there.cpu(), here)


@ROUTES
def test_ddp_on_a_device_gives_the_bits_of_the_cpu(route: dict[str, str]) -> None:
    run_ranks(2, _ddp, environment=route)


def _fused(world: World) -> None:
    device = _init(world)
    sizes = ((3, 5), (4097,), (), (0,))
    here = [cancelling(torch.float32, n, world.rank) for n in (15, 4097, 1, 0)]
    here = [tensor.view(size) for tensor, size in zip(here, sizes, strict=True)]
    there = [tensor.to(device) for tensor in here]
    wanted = fastcomm.fused_all_reduce_(here, norm_type=2.0, scale=0.5)
    found = fastcomm.fused_all_reduce_(there, norm_type=2.0, scale=0.5)
    assert found.total_norm is not None and wanted.total_norm is not None
    assert same_bits(found.total_norm.cpu(), wanted.total_norm)
    assert same_bits(found.partial_norms.cpu(), wanted.partial_norms)
    for a, b in zip(there, here, strict=True):
        assert a.device == device and same_bits(a.cpu(), b)
    norms = []
    for place in (torch.device("cpu"), device):
        torch.manual_seed(3)
        model = fastcomm.nn.parallel.DistributedDataParallel(
            nn.Linear(6, 5).to(place), max_norm=0.1
        )
        torch.manual_seed(world.rank)
        model(torch.randn(4, 6).to(place)).square().mean().backward()
        norms.append([parameter.grad.cpu() for parameter in model.parameters()])
    for a, b in zip(*norms, strict=True):
        assert same_bits(a, b)


@ROUTES
def test_fused_operations_on_a_device_give_the_bits_of_the_cpu(route: dict[str, str]) -> None:
    run_ranks(2, _fused, environment=route)

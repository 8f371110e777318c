"""Tensors on simulated devices, in a native group: the bits of the same tensors on the CPU.

Through the host's memory, or by kernels that use the memory of each other's devices.
"""

from __future__ import annotations

import math
import os
import time

import pytest
import torch
import torch.distributed as dist
from support import direct
from support.direct import DTYPES, SMALL, check_bits, init, is_direct, train_ddp_on_both
from support.fused import OPTIONS, check_fused, gradients, moved
from support.ranks import World, run_ranks
from support.tree import same_bits
from support.values import cancelling

import fastcomm
from fastcomm._gradients.shards import row_offsets

pytestmark = pytest.mark.usefixtures("simulated")

HOST = {**SMALL, "FASTCOMM_ROUTE": "nccl", "FASTCOMM_BLOCK_BYTES": "4096"}
ROOMY = {"FASTCOMM_ROUTE": "nccl"}  # by way of the host, too; slots that fit lists
PINNED = {**SMALL, "FASTCOMM_ROUTE": "pinned"}
WAYS = {"host": HOST, "pinned": PINNED, "direct": SMALL, "pulled": SMALL, "in place": SMALL}
ROUTES = pytest.mark.parametrize("route", [HOST, SMALL], ids=["host", "direct"])


class Some:
    """Puts most tensors where all ranks have mapped them, at times not aligned to a pack."""

    def __init__(self, rank: int) -> None:
        self.turn = rank

    def __call__(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.turn += 1
        # All ask at once, or nobody may.
        memory, _ = direct.shared(values.new_zeros(1, values.numel() + 1))
        begin = self.turn % 4 == 0
        there = memory[0, begin : begin + values.numel()].view_as(values).copy_(values)
        return direct.plain(values if self.turn % 4 == 1 else there)


def _bits(world: World, way: str) -> None:
    if way == "pulled" and world.rank == 0:  # whose setting holds for everybody
        os.environ["FASTCOMM_DEVICE_RESULTS"] = "pull"
    device = init(world)
    dist.all_reduce(data := torch.ones(3, device=device))  # from here on it is known what serves
    assert fastcomm.explain("all_reduce", data).native
    assert is_direct(data, way=direct.ON_HOST) == (way == "pinned")
    assert is_direct(data) == (way not in ("host", "pinned"))
    in_place: list[direct.Place] = [direct.shared, Some(world.rank)]
    places = in_place if way == "in place" else [direct.plain]
    counts = (2048, 1023, 4100, 6, 1, 700)
    cases = [*zip(DTYPES, counts, strict=True), (torch.bfloat16, 0)]
    # Five ranks take turns on two cores: every second case.
    for dtype, count in cases if world.size < 5 else cases[1::2]:
        for place in places:
            check_bits(world, device, dtype, count, place)
    assert fastcomm.is_shared(fastcomm.empty(9, device=device)) == (way in ("direct", "in place"))


@pytest.mark.parametrize(
    ("way", "size"),
    [("host", 2), *((way, 3) for way in WAYS if way != "host"), ("in place", 2), ("direct", 5)],
)
def test_each_operation_gives_the_bits_of_the_cpu(way: str, size: int) -> None:
    run_ranks(size, _bits, way, environment=WAYS[way])


def _forms(world: World) -> None:
    device = init(world)
    for dtype, form in (
        (torch.float32, direct.strided),
        (torch.float32, direct.turned),
        (torch.bfloat16, direct.turned),
        (torch.int64, direct.strided),
        (torch.complex64, direct.strided),  # what is complex is not negated
    ):
        count = 1200 // dtype.itemsize  # more than goes at once
        check_bits(world, device, dtype, count, form, form)


@ROUTES
def test_tensors_with_gaps_and_lazy_ones_leave_what_lies_beside_them(route: dict[str, str]) -> None:
    run_ranks(2, _forms, environment=route)


def _later(world: World) -> None:
    device = init(world)
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
    if world.rank == 0:
        dist.send(data, 1)
    else:
        assert dist.recv(received) == 0  # from any rank


@ROUTES
def test_works_and_futures_have_the_tensors_of_the_device(route: dict[str, str]) -> None:
    run_ranks(2, _later, environment=route)


def _places(world: World) -> None:
    device = init(world)
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
    device = init(world)
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
    device = init(world)
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
    train_ddp_on_both(world, init(world), bucket_cap_mb=0.004, find_unused_parameters=True)


@pytest.mark.parametrize("way", ["host", "pinned", "direct"])
def test_stock_ddp_has_the_weights_of_the_cpu(way: str) -> None:
    """With buckets in ordinary memory; in place: tests/gpu/test_between_processes.py."""
    run_ranks(3, _ddp, environment=WAYS[way])


def _fused(world: World) -> None:
    """Reduce lists on one device, and lists that begin on it or on the CPU and go on elsewhere."""
    device = init(world)
    for number, options in enumerate(OPTIONS):
        here = gradients(world.rank, number)
        if options.get("norm_type") in (1, math.inf):
            here = here[:-1]  # no complex ones
        there = moved(here, device)
        if number == 1:
            there[::2] = moved(here[::2], torch.device("cpu"))
        elif number == 2:
            there[1::2] = moved(here[1::2], torch.device("cpu"))
        found = fastcomm.fused_all_reduce_(there, **options, async_op=number % 2 == 0)
        found.wait()
        wanted = fastcomm.fused_all_reduce_(here, **options)
        check_fused(found, wanted, torch.device("cpu"))
        for ours, theirs in zip(there, here, strict=True):
            assert ours.stride() == theirs.stride() and same_bits(ours.cpu(), theirs), options
    for refused, words in (
        (torch.ones(1, device=device).expand(5), "overlaps itself"),
        (torch.ones(3, dtype=torch.int32, device=device), "not floating-point"),
        (torch.eye(3).to_sparse(), "gradient 1 is Sparse"),
        (torch.ones(3, device="meta"), "is on meta"),
    ):
        with pytest.raises(ValueError, match=words):
            fastcomm.fused_all_reduce_([there[0], refused])
    dist.barrier()


def test_lists_of_gradients_by_way_of_the_host() -> None:
    run_ranks(2, _fused, environment=ROOMY)


def _feedback(world: World) -> None:
    """Feed errors back, complex gradients and strided ones too; both kinds of tensors follow."""
    device = init(world)
    here = [each for each in gradients(world.rank) if each.dtype in (torch.float32, torch.cfloat)]
    kept = [
        torch.zeros_like(each.contiguous() if each.stride() == (6, 2) else each) for each in here
    ]
    there, kept_there = moved(here, device), moved(kept, device)
    for _ in range(2):
        fastcomm.fused_all_reduce_(here, comm_dtype=torch.bfloat16, residuals=kept)
        fastcomm.fused_all_reduce_(there, comm_dtype=torch.bfloat16, residuals=kept_there)
        for ours, theirs in zip([*there, *kept_there], [*here, *kept], strict=True):
            assert same_bits(ours.cpu(), theirs)
    assert any(bool(each.any()) for each in kept)
    with pytest.raises(ValueError, match="residual"):
        fastcomm.fused_all_reduce_(there, comm_dtype=torch.bfloat16, residuals=kept)


def test_error_feedback_by_way_of_the_host() -> None:
    run_ranks(2, _feedback, environment=ROOMY)


def _shards(world: World) -> None:
    """Reduce what each rank owns, and gather it; a tensor with gaps cannot be divided."""
    device = init(world)
    here = [each for each in gradients(world.rank) if not each.is_complex()][:7]
    offsets = [row_offsets(each, world.size) for each in here]
    there = moved(here, device)
    fastcomm.fused_reduce_scatter_(there, offsets)
    fastcomm.fused_all_reduce_(here)
    fastcomm.gather_shards_(there, offsets)
    assert all(map(same_bits, (each.cpu() for each in there), here))
    with pytest.raises(ValueError, match="has gaps"):
        fastcomm.fused_reduce_scatter_([torch.ones(4, 6, device=device)[:, ::2]], [[0, 6, 12]])


def test_shards_by_way_of_the_host() -> None:
    run_ranks(2, _shards, environment=ROOMY)

"""The primitives of one process and DataParallel on a real GPU, which may stand for several.

Copies are compared bit by bit with torch's, sums with the tree that tests/support/tree.py has. What
needs two GPUs skips with one.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from typing import Any

import pytest
import torch
from support import gpu, tree
from torch import nn

import fastcomm
from fastcomm import _native, comm
from fastcomm.replicate import Replicator, replicate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(gpu.WHY_NONE is not None, reason=str(gpu.WHY_NONE)),
]

SHAPES = [(3, 5), (4096,), (1,), (0,), (2, 3, 4, 5), (70001,), ()]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool]
DEVICES = [[0, 0], [0, 0, 0, 0], [0, 0, 0, 0, 0]]
needs_two = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"
)


def _values(dtype: torch.dtype, device: int) -> list[torch.Tensor]:
    made = [torch.randn(shape, device=device).mul(40).to(dtype) for shape in SHAPES]
    made.append(torch.randn(6, 7, device=device).mul(40).to(dtype).t())
    made.append(torch.randn(2, 3, 8, 8, device=device).mul(40).to(dtype)[:, :, ::2])  # with gaps
    return made


def _all_devices() -> list[list[int]]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 1
    return [*DEVICES, list(range(count))] if count > 1 else DEVICES


@pytest.mark.parametrize("devices", _all_devices())
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_are_equal_bit_by_bit(devices: list[int], dtype: torch.dtype) -> None:
    tensors = _values(dtype, devices[0])
    lists = comm.broadcast_coalesced(tensors, devices)
    assert all(a is b for a, b in zip(lists[0], tensors, strict=True))
    for device, values in zip(devices[1:], lists[1:], strict=True):
        for value, source in zip(values, tensors, strict=True):
            assert value.get_device() == device and value._version == 0
            assert torch.equal(value.cpu(), source.cpu())
            assert value.stride() == torch.empty_like(source).stride()


@pytest.mark.parametrize("devices", _all_devices())
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_have_the_order_of_the_tree(devices: list[int], dtype: torch.dtype) -> None:
    lists = [_values(dtype, device) for device in devices]
    sums = comm.reduce_add_coalesced(lists, devices[0])
    for place, total in zip(zip(*lists, strict=True), sums, strict=True):
        assert total.get_device() == devices[0]
        assert torch.equal(total.cpu(), tree.tree_sum([value.cpu() for value in place]))


def test_the_work_is_ordered_behind_the_current_streams() -> None:
    side = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            ones = [torch.ones(100_000, device="cuda") for _ in range(4)]
            copies = comm.broadcast_coalesced(ones, [0, 0])[1]
            (total, *_) = comm.reduce_add_coalesced([ones, copies], 0)
            del ones, copies
        side.synchronize()
        assert total.eq(2).all()
        del total
        torch.full((100_000,), 7.0, device="cuda")  # memory given back too early would be this


@pytest.mark.parametrize("devices", _all_devices())
@pytest.mark.parametrize("buffers", ["first", "sync_batchnorm"])
def test_replicas_run_on_the_callers_streams(devices: list[int], buffers: Any) -> None:
    """What they read is written late, on a stream that is not the default one."""
    module = nn.BatchNorm1d(4, affine=False).cuda(devices[0])
    parallel: Any = fastcomm.DataParallel(module, devices, buffers=buffers)
    rows = torch.arange(4.0 * len(devices) * 64).view(-1, 4)
    want = parallel(rows.cuda(devices[0])).cpu()
    torch.cuda.synchronize(devices[0])
    sides = {device: torch.cuda.Stream(device) for device in devices}
    for _ in range(5):
        x = torch.zeros(len(rows), 4, device=devices[0])
        torch.cuda.synchronize(devices[0])
        with contextlib.ExitStack() as stack:
            for device in sorted(sides, key=lambda device: device == devices[0]):
                stack.enter_context(torch.cuda.stream(sides[device]))
            torch.cuda._sleep(20_000_000)
            x.copy_(rows, non_blocking=True)
            got = parallel(x)
        sides[devices[0]].synchronize()
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("devices", _all_devices())
def test_replicas_last_and_see_every_change(devices: list[int]) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)).to(devices[0])
    replicator = Replicator(model, devices)
    first = replicator.replicas(detach=True)
    memory = first[1][0].weight.data_ptr()
    kept = [id(replica) for replica in first]
    del first
    model[0].weight.data.mul_(3)
    second = replicator.replicas(detach=True)
    assert [id(replica) for replica in second] == kept
    assert second[1][0].weight.data_ptr() == memory
    x = torch.randn(5, 64)
    model.eval()
    want = model(x.to(devices[0])).cpu()
    for device, replica in zip(devices, replicator.replicas(detach=True), strict=True):
        assert torch.equal(replica(x.to(device)).cpu(), want)
    assert len(replicate(model, devices)) == len(devices)


def _train(model: nn.Module, steps: int = 4) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 16, generator=generator).cuda()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


@pytest.mark.parametrize("devices", _all_devices())
def test_training_is_that_of_torchs_data_parallel(devices: list[int]) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).cuda()
    stock: Any = torch.nn.DataParallel(copy.deepcopy(model), devices)
    ours: Any = fastcomm.DataParallel(model, devices)
    for a, b in zip(_train(ours), _train(stock), strict=True):
        torch.testing.assert_close(a, b)  # sums of more than two have another order there


def test_use_puts_ours_under_torchs() -> None:
    module: Any = torch.nn.DataParallel(nn.Linear(4, 4).cuda(), [0, 0])
    x = torch.randn(6, 4, device="cuda")
    want = module(x)
    with fastcomm.use():
        assert torch.equal(module(x), want)


def test_the_native_functions_do_the_work() -> None:
    native = _native.load()
    tensors = _values(torch.float32, 0)
    assert native.copy_device_lists(tensors, [0, 0]) is not None
    assert native.sum_device_lists([tensors, tensors], 0) is not None
    assert native.copy_device_lists([torch.ones(3)], [0, 0]) is None


@needs_two
def test_memory_is_even_where_the_loss_is_computed_in_the_replicas() -> None:
    devices = list(range(torch.cuda.device_count()))
    model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 16384)).to("cuda:0")
    parallel: Any = fastcomm.DataParallel(model, devices, loss_fn=nn.CrossEntropyLoss())
    peaks = []
    for step in range(3):
        gc.collect()
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        x = torch.randn(512 * len(devices), 256)
        y = torch.randint(16384, (len(x),))
        parallel(x, y).mean().backward()
        model.zero_grad()
        if step > 0:
            peaks = [torch.cuda.max_memory_allocated(device) for device in devices]
    print(f"peaks in MiB: {[peak >> 20 for peak in peaks]}")
    assert abs(peaks[0] - max(peaks[1:])) <= 0.05 * max(peaks)

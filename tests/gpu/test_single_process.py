"""The primitives of one process and DataParallel on devices: a GPU, which may stand for several, or
simulated ones.

What the primitives compute: tests/package/devices/test_comm.py, which runs there too. Tests that
need two devices skip with one.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from typing import Any

import pytest
import torch
from support import places
from torch import nn

import fastcomm
from fastcomm import _native, comm
from fastcomm.nn.parallel.replicate import Replicator, replicate

pytestmark = pytest.mark.accelerator

KIND = places.kind()
DEVICES = [[0, 0], [0, 0, 0, 0], [0, 0, 0, 0, 0]]
needs_two = pytest.mark.skipif(places.count() < 2, reason="needs two devices")


def _all_devices() -> list[list[int]]:
    count = places.count()
    return [*DEVICES, list(range(count))] if count > 1 else DEVICES


def test_the_work_is_ordered_behind_the_current_streams() -> None:
    side = places.module().Stream()
    for _ in range(20):
        with places.module().stream(side):
            places.keep_busy(side, milliseconds=1)
            ones = [torch.ones(100_000, device=KIND) for _ in range(4)]
            copies = comm.broadcast_coalesced(ones, [0, 0])[1]
            (total, *_) = comm.reduce_add_coalesced([ones, copies], 0)
            del ones, copies
        side.synchronize()
        assert total.eq(2).all()
        del total
        torch.full((100_000,), 7.0, device=KIND)  # memory given back too early would be this


@pytest.mark.parametrize("devices", _all_devices())
@pytest.mark.parametrize("buffers", ["first", "sync_batchnorm"])
def test_replicas_run_on_the_callers_streams(devices: list[int], buffers: Any) -> None:
    """What replicas read is written late, on a non-default stream."""
    module = nn.BatchNorm1d(4, affine=False).to(devices[0])
    parallel: Any = fastcomm.nn.parallel.DataParallel(module, devices, buffers=buffers)
    rows = torch.arange(4.0 * len(devices) * 64).view(-1, 4)
    want = parallel(rows.to(devices[0])).cpu()
    places.module().synchronize(devices[0])
    sides = {device: places.module().Stream(device) for device in devices}
    for _ in range(5):
        x = torch.zeros(len(rows), 4, device=devices[0])
        places.module().synchronize(devices[0])
        with contextlib.ExitStack() as stack:
            for device in sorted(sides, key=lambda device: device == devices[0]):
                stack.enter_context(places.module().stream(sides[device]))
            places.keep_busy(sides[devices[0]], milliseconds=10)
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
        x = torch.randn(32, 16, generator=generator).to(KIND)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


@pytest.mark.parametrize("devices", _all_devices())
def test_training_is_that_of_torchs_data_parallel(devices: list[int]) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(KIND)
    stock: Any = copy.deepcopy(model)
    if KIND == "cuda":  # which torch's own primitives need
        stock = nn.DataParallel(stock, devices)
    ours: Any = fastcomm.nn.parallel.DataParallel(model, devices)
    for a, b in zip(_train(ours), _train(stock), strict=True):
        torch.testing.assert_close(a, b)  # sums of more than two have another order there


def test_use_puts_ours_under_torchs() -> None:
    module: Any = nn.DataParallel(nn.Linear(4, 4).to(KIND), [0, 0])
    x = torch.randn(6, 4, device=KIND)
    want = torch.cat([module.module(part) for part in x.chunk(2)])
    with fastcomm.use():
        assert torch.equal(module(x), want)


def test_the_native_functions_do_the_work() -> None:
    native = _native.load()
    tensors = [torch.ones(3, device=KIND), torch.ones(6, 7, device=KIND).t()]
    assert native.copy_lists(tensors, [0, 0]) is not None
    assert native.sum_lists([tensors, tensors], 0) is not None
    assert native.copy_lists([torch.ones(3)], [0, 0]) is None


def _peaks(parallel: Any, loss_fn: Any, rows: int, classes: int) -> list[int]:
    """The most bytes that torch had on each device in a later step."""
    count = places.count()
    for _ in range(3):
        gc.collect()
        for device in range(count):
            places.module().reset_peak_memory_stats(device)
        x = torch.randn(rows * count, 32)
        y = torch.randint(classes, (len(x),))
        loss = parallel(x, y) if loss_fn is None else loss_fn(parallel(x), y.to(KIND))
        loss.mean().backward()
        del loss
        parallel.zero_grad()
    return [places.module().max_memory_allocated(device) for device in range(count)]


@needs_two
def test_memory_is_even_where_the_loss_is_computed_in_the_replicas() -> None:
    devices = list(range(places.count()))
    # Outputs take most memory; the first device also has the sums of the gradients, and on CUDA
    # workspaces of libraries count.
    rows, classes = (2048, 16384) if KIND == "cuda" else (64, 2048)
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, classes)).to(KIND)
    loss_fn = nn.CrossEntropyLoss()
    here: Any = fastcomm.nn.parallel.DataParallel(model, devices)
    first, *others = _peaks(here, loss_fn, rows, classes)
    assert first > 2 * max(others)
    spread: Any = fastcomm.nn.parallel.DataParallel(model, devices, loss_fn=loss_fn)
    first, *others = _peaks(spread, None, rows, classes)
    assert first <= 1.05 * max(others)

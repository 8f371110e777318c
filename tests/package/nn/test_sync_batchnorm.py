"""Synchronised BatchNorm: replicas together do what BatchNorm does with the whole batch."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from support.garbage import garbage_of
from support.places import Place
from torch import nn

from fastcomm.nn.parallel.data_parallel import DataParallel


def _net(momentum: float | None, affine: bool) -> nn.Sequential:
    torch.manual_seed(0)
    options: dict[str, Any] = {"momentum": momentum, "affine": affine}
    return nn.Sequential(
        nn.Conv2d(2, 3, 2),
        nn.BatchNorm2d(3, **options),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.BatchNorm1d(5, **options),
        nn.BatchNorm1d(5, track_running_stats=False),
    ).double()


# Every two of these together.
@pytest.mark.parametrize(
    ("momentum", "affine", "rows", "replicas"),
    [
        (0.1, True, 8, 2),
        (None, False, 8, 2),
        (0.1, False, 7, 3),
        (None, True, 7, 3),
        (0.1, True, 5, 4),
        (None, False, 5, 4),
    ],
)
def test_it_is_batchnorm_of_the_whole_batch(
    place: Place, momentum: float | None, affine: bool, rows: int, replicas: int
) -> None:
    """Devices give the bits of CPU slots."""
    plain = _net(momentum, affine)
    on_slots, net = copy.deepcopy(plain), copy.deepcopy(plain).to(place.first)
    slots = DataParallel(on_slots, ["cpu"] * replicas, buffers="sync_batchnorm")
    parallel = DataParallel(net, place.devices(replicas), buffers="sync_batchnorm")
    models = [(plain, "cpu"), (slots, "cpu"), (parallel, place.first)]
    for _ in range(3):
        batch = torch.randn(rows, 2, 3, 3, dtype=torch.float64)
        results = []
        for model, device in models:
            x = batch.detach().to(device, copy=True).requires_grad_()
            model.zero_grad()
            output = model(x)
            output.square().sum().sin().backward()
            results.append([output.detach(), x.grad, *(p.grad for p in model.parameters())])
        for wanted, of_slots, of_devices in zip(*results, strict=True):
            assert wanted is not None and of_slots is not None and of_devices is not None
            torch.testing.assert_close(of_slots, wanted, rtol=1e-9, atol=1e-10)
            place.check_alike(of_devices, of_slots)
        for wanted, of_slots, of_devices in zip(*(m.buffers() for m, _ in models), strict=True):
            torch.testing.assert_close(of_slots, wanted, rtol=1e-11, atol=1e-13)
            place.check_alike(of_devices, of_slots)
    # Without running statistics the last layer uses its own part of the batch in eval mode, too.
    batch = torch.randn(rows, 2, 3, 3, dtype=torch.float64)
    plain[6] = on_slots[6] = net[6] = nn.Identity()
    wanted, of_slots, of_devices = (model.eval()(batch.to(device)) for model, device in models)
    torch.testing.assert_close(of_slots, wanted, rtol=1e-9, atol=1e-10)
    place.check_alike(of_devices, of_slots)


def test_half_precision_keeps_its_dtype(place: Place) -> None:
    norm = nn.BatchNorm1d(4).to(place.first)
    parallel = DataParallel(norm, place.devices(2), buffers="sync_batchnorm")
    assert parallel(torch.randn(6, 4).bfloat16()).dtype == torch.bfloat16


def test_a_batchnorm_with_a_forward_of_its_own_is_refused() -> None:
    class Activated(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    parallel = DataParallel(Activated(3), ["cpu"] * 2, buffers="sync_batchnorm")
    with pytest.raises(TypeError, match="Activated has a forward of its own"):
        parallel(torch.randn(4, 3))
    assert parallel.eval()(torch.randn(4, 3)).min() >= 0


def test_nothing_is_left_behind(place: Place) -> None:
    net = _net(0.1, True).to(place.first)
    parallel = DataParallel(net, place.devices(2), buffers="sync_batchnorm")
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    parallel(x).sum().backward()
    # On simulated devices torch's kernels in Python compute shapes, and leave builtin objects.
    kinds = [type(left) for left in garbage_of(lambda: parallel(x).sum().backward())]
    assert not [k for k in kinds if k.__module__ not in ("builtins", "types")], kinds
    assert place.name != "cpu" or not kinds, kinds
    assert not any("forward" in vars(module) for module in parallel.module.modules())


def test_no_thread_for_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = DataParallel(_net(0.1, True), ["cpu"] * 3, buffers="sync_batchnorm")
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        parallel(torch.randn(6, 2, 3, 3, dtype=torch.float64))
    assert len(started) == 2 and not any(thread.is_alive() for thread in started)


class Uneven(nn.Module):
    """Runs no layer, both in one order or in the other, or raises, by the first number of `x`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.BatchNorm1d(1), nn.BatchNorm1d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0] == 0:
            return x
        if x[0] == 3:
            raise KeyError("of the user")
        return self.two(self.one(x)) if x[0] == 1 else self.one(self.two(x))


@pytest.mark.parametrize(
    ("parts", "error", "match"),
    [
        ((1, 0), RuntimeError, r"replicas \[1\] have ended"),
        ((0, 1), RuntimeError, r"replicas \[0\] have ended"),
        ((1, 2), RuntimeError, "they are in different ones"),
        ((3, 1), KeyError, "of the user"),
        ((1, 3), RuntimeError, r"replica 1 by KeyError\('of the user'\)"),
        ((1, 1, 2), RuntimeError, "they are in different ones"),
    ],
)
def test_a_replica_that_does_not_come_is_an_error_and_no_hang(
    place: Place, parts: tuple[int, ...], error: type[Exception], match: str
) -> None:
    model = Uneven().to(place.first)
    parallel = DataParallel(model, place.devices(len(parts)), buffers="sync_batchnorm")
    x = torch.tensor([float(part) for part in parts for _ in range(2)]).view(-1, 1)
    with pytest.raises(error, match=match):
        parallel(x)
    assert parallel(torch.ones(4, 1)).shape == (4, 1)

"""What DataParallel takes: forms of inputs, tensors without dimensions, lost rows, devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.places import Place
from support.steps import Applied, small_net
from torch import nn
from torch.nn import functional as F

import fastcomm
from fastcomm.nn.parallel.data_parallel import DataParallel, DataParallelCriterion, data_parallel

TWO = ["cpu", "cpu"]


def test_without_inputs_one_replica_runs(place: Place) -> None:
    constant = Applied(lambda: torch.ones(2, 3))
    for devices in (place.devices(1), place.devices(2)):
        assert torch.equal(DataParallel(constant, devices)().cpu(), torch.ones(2, 3))
        assert torch.equal(data_parallel(constant, None, devices).cpu(), torch.ones(2, 3))


@pytest.mark.parametrize("devices", [2, "cpu", torch.device("cpu")])
def test_devices_are_a_list(devices: Any) -> None:
    with pytest.raises(TypeError, match=r"devices are a list, such as \["):
        fastcomm.nn.parallel.DataParallel(nn.Linear(2, 2), devices)


@pytest.mark.parametrize("ids", [[-1, -1], (-1, "cpu"), [torch.device("cpu"), "cpu:0"]])
def test_minus_one_is_the_cpu_at_every_door(ids: Any) -> None:
    net, x = small_net(), torch.randn(5, 6, dtype=torch.float64)
    parallel = DataParallel(net, ids, output_device=-1)
    assert parallel.device_ids == TWO and parallel.output_device == "cpu"
    torch.testing.assert_close(parallel(x), net(x))
    outputs = DataParallel(net, ids, gather_outputs=False)(x)
    assert [len(output) for output in outputs] == [3, 2]
    losses = DataParallelCriterion(nn.MSELoss(), -1)(outputs, torch.zeros(5, 3).double())
    assert losses.shape == (2,)
    torch.testing.assert_close(data_parallel(net, x, ids, -1), net(x))
    parts = fastcomm.nn.parallel.scatter(x, ids)
    replicas = fastcomm.nn.parallel.replicate(net, ids)
    assert len(parts) == len(replicas) == 2
    results = fastcomm.nn.parallel.parallel_apply(replicas, parts, devices=ids)
    torch.testing.assert_close(fastcomm.nn.parallel.gather(results, -1), net(x))


@pytest.mark.parametrize(
    ("device", "error"),
    [
        (-2, RuntimeError),
        ("nonsense", RuntimeError),
        ("meta", ValueError),
        (1.5, TypeError),
        (True, TypeError),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda net, x, device: DataParallel(net, [device, device]),
        lambda net, x, device: DataParallel(net, TWO, device),
        lambda net, x, device: DataParallelCriterion(nn.MSELoss(), device),
        lambda net, x, device: data_parallel(net, x, [device, device]),
        lambda net, x, device: data_parallel(net, x, TWO, device),
        lambda net, x, device: fastcomm.nn.parallel.scatter(x, [device, device]),
        lambda net, x, device: fastcomm.nn.parallel.gather([x, x], device),
        lambda net, x, device: fastcomm.nn.parallel.replicate(net, [device, device]),
        lambda net, x, device: fastcomm.nn.parallel.parallel_apply([net], [x], devices=[device]),
        lambda net, x, device: fastcomm.comm.broadcast(x, [device, device]),
    ],
)
def test_what_is_no_device(call: Any, device: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(small_net(), torch.randn(4, 6, dtype=torch.float64), device)


@pytest.mark.accelerator
def test_devices_that_are_not_here() -> None:
    beyond = torch.accelerator.device_count()
    for ids in ([beyond], [0, beyond]):
        with pytest.raises(RuntimeError, match=f"device {beyond} was asked for, but"):
            DataParallel(nn.Linear(2, 2), ids)


def test_an_empty_list_of_devices() -> None:
    """The module runs as it is, as in torch where it finds no accelerator."""
    assert DataParallel(nn.Linear(2, 2), []).device_ids == []
    with pytest.raises(RuntimeError, match="no available devices were found"):
        data_parallel(nn.Linear(2, 2), torch.ones(2, 2), [])


class Scales(nn.Module):
    def forward(self, scale: torch.Tensor, x: torch.Tensor, **more: Any) -> torch.Tensor:
        for values in more.values():
            x = x * (values["scale"] if isinstance(values, dict) else values)
        return scale * x


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("sizes", [None, [1, 3]])
def test_0_dim_tensors_go_whole_to_every_replica(place: Place, dim: int, sizes: Any) -> None:
    x = torch.arange(25.0).view(5, 5)
    results = []
    for call in (
        Scales(),
        DataParallel(Scales(), place.devices(2), "cpu", dim, chunk_sizes=sizes),
        lambda *given, **more: data_parallel(
            Scales(), given, place.devices(2), "cpu", dim, module_kwargs=more
        ),
    ):
        scales = [torch.tensor(value, requires_grad=True) for value in (2.0, 3.0, 5.0)]
        output = call(scales[0], x, a=scales[1], b={"scale": scales[2]})
        assert output.shape == x.shape
        results.append([output, *torch.autograd.grad(output.sum(), scales)])
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_losses_are_weighted_by_rows_beside_0_dim_tensors() -> None:
    x, scale = torch.randn(5, 3), torch.tensor(2.0)
    losses = DataParallel(Scales(), TWO, loss_fn=F.mse_loss)(scale, x, torch.zeros(5, 3))
    torch.testing.assert_close(losses.mean(), (2 * x).square().mean())


def test_0_dim_tensors_alone_make_one_replica(place: Place) -> None:
    constant = Applied(lambda scale: scale * torch.ones(2, 3, device=scale.device))
    two, scale = place.devices(2), torch.tensor(2.0)
    wanted = 2 * torch.ones(2, 3)
    assert torch.equal(DataParallel(constant, two)(scale).cpu(), wanted)
    assert torch.equal(DataParallel(constant, two, chunk_sizes=[1, 2])(scale).cpu(), wanted)
    assert torch.equal(data_parallel(constant, scale, two).cpu(), wanted)


def test_inputs_that_would_lose_rows(place: Place) -> None:
    a, b, four = torch.ones(8, 2), torch.ones(5, 2), place.devices(4)
    product = Applied(lambda a, b, factor: factor * a * b)
    parallel = DataParallel(product, four)
    for arguments, keywords in (((a, b, 1.0), {}), ((a,), {"b": b, "factor": 1.0})):
        with pytest.raises(ValueError, match="of 8 and of 5 along dimension 0"):
            parallel(*arguments, **keywords)
        with pytest.raises(ValueError, match="of 8 and of 5 along dimension 0"):
            data_parallel(product, arguments, four, module_kwargs=keywords)

"""The autograd functions: values, gradients, gradients of gradients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from support.places import Place
from torch.autograd import gradcheck, gradgradcheck

from fastcomm.nn.parallel._functions import Broadcast, Gather, ReduceAddCoalesced, Scatter

TWO = ["cpu", "cpu"]


def _double(*shape: int, device: torch.device | None = None) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(device).requires_grad_()


def _check(function: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_broadcast(place: Place) -> None:
    devices = place.devices(3)
    x, y, fixed = _double(2, 3, device=devices[0]), _double(4, device=devices[0]), torch.randn(5)
    sources = (x, y, place.put(fixed))
    outputs = Broadcast.apply(devices, *sources)
    assert len(outputs) == 9
    for i, output in enumerate(outputs):
        source = sources[i % 3]
        assert output.device == devices[i // 3] and torch.equal(output.cpu(), source.cpu())
        assert output.requires_grad == source.requires_grad
        assert (output.data_ptr() == source.data_ptr()) == (i < 3)
    _check(lambda a, b: Broadcast.apply(devices, a, b), (x, y))
    assert Broadcast.apply(devices) == ()


def test_reduce_add_coalesced(place: Place) -> None:
    devices = place.devices(3)
    tensors = tuple(_double(2, 2, device=devices[i // 2]) for i in range(6))
    here = [tensor.cpu() for tensor in tensors]
    for target in (devices[0], devices[2]):
        sums = ReduceAddCoalesced.apply(target, 2, *tensors)
        assert torch.equal(sums[0].cpu(), here[0] + here[2] + here[4])
        assert torch.equal(sums[1].cpu(), here[1] + here[3] + here[5])
    _check(lambda *t: ReduceAddCoalesced.apply(devices[1], 2, *t), tensors)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("begins", ["here", "on the CPU"])
def test_scatter_and_gather(place: Place, dim: int, begins: str) -> None:
    two = place.devices(2)
    shape = (4, 2) if dim == 0 else (2, 4)
    x = _double(*shape, device=two[0] if begins == "here" else None)
    chunks = Scatter.apply(two, None, dim, x)
    for chunk, device, want in zip(chunks, two, x.chunk(2, dim), strict=True):
        assert chunk.device == device and torch.equal(chunk.cpu(), want.cpu())
    chunks[0].backward(torch.full_like(chunks[0], 2))
    assert x.grad is not None and x.grad.device == x.device
    wanted = torch.zeros(shape, dtype=torch.float64)
    wanted.narrow(dim, 0, 2).fill_(2)
    assert torch.equal(x.grad.cpu(), wanted)
    _check(lambda t: Scatter.apply(two, (1, 3), dim, t), (x,))
    target = two[1] if begins == "here" else "cpu"
    a, b = (_double(2, 2, device=device) for device in two)
    assert torch.equal(Gather.apply(target, dim, a, b).cpu(), torch.cat([a.cpu(), b.cpu()], dim))
    _check(lambda a, b: Gather.apply(target, dim, a, b), (a, b))


def test_scalars_become_a_vector(place: Place) -> None:
    x, y = (_double(device=device) for device in place.devices(2))
    with pytest.warns(UserWarning, match="all input tensors were scalars"):
        joined = Gather.apply(place.first, 0, x, y)
    assert torch.equal(joined.cpu(), torch.stack([x.cpu(), y.cpu()]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(lambda a, b: Gather.apply(place.first, 0, a, b), (x, y))


def test_complex_tensors_stay_complex(place: Place) -> None:
    two = place.devices(2)
    x = torch.randn(2, 2, dtype=torch.complex128).to(two[0]).requires_grad_()
    for output in (
        *Broadcast.apply(two, x),
        *ReduceAddCoalesced.apply(two[0], 1, x, x),
        Gather.apply(two[0], 0, *Scatter.apply(two, None, 0, x)),
    ):
        assert output.dtype == torch.complex128 and output.shape == x.shape
    _check(lambda t: Broadcast.apply(two, t), (x,))
    _check(lambda t: Gather.apply(two[1], 0, *Scatter.apply(two, None, 0, t)), (x,))


def test_sparse_gradients_stay_sparse() -> None:
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    copies = Broadcast.apply(TWO, embedding.weight)
    total = sum(
        torch.nn.functional.embedding(torch.tensor([1, i]), weight, sparse=True).sum()
        for i, weight in enumerate(copies)
    )
    assert isinstance(total, torch.Tensor)
    total.backward()
    assert embedding.weight.grad is not None and embedding.weight.grad.is_sparse
    wanted = torch.zeros(10, 3)
    wanted[0], wanted[1] = 1, 3
    assert torch.equal(embedding.weight.grad.to_dense(), wanted)

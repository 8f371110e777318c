"""The autograd functions on CPU slots: values, gradients, gradients of gradients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from fastcomm.functions import Broadcast, Gather, ReduceAddCoalesced, Scatter

TWO = ["cpu", "cpu"]


def _double(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def _check(function: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_broadcast() -> None:
    x, y, fixed = _double(2, 3), _double(4), torch.randn(5)
    outputs = Broadcast.apply(["cpu"] * 3, x, y, fixed)
    assert len(outputs) == 9
    for i, output in enumerate(outputs):
        source = (x, y, fixed)[i % 3]
        assert torch.equal(output, source)
        assert output.requires_grad == source.requires_grad
        assert (output.data_ptr() == source.data_ptr()) == (i < 3)
    _check(lambda a, b: Broadcast.apply(["cpu"] * 3, a, b), (x, y))
    assert Broadcast.apply(TWO) == ()


def test_reduce_add_coalesced() -> None:
    tensors = tuple(_double(2, 2) for _ in range(6))
    sums = ReduceAddCoalesced.apply("cpu", 2, *tensors)
    assert torch.equal(sums[0], tensors[0] + tensors[2] + tensors[4])
    assert torch.equal(sums[1], tensors[1] + tensors[3] + tensors[5])
    _check(lambda *t: ReduceAddCoalesced.apply("cpu", 2, *t), tensors)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter_and_gather(dim: int) -> None:
    x = _double(4, 4)
    chunks = Scatter.apply(TWO, None, dim, x)
    assert all(torch.equal(a, b) for a, b in zip(chunks, x.chunk(2, dim), strict=True))
    chunks[0].backward(torch.full_like(chunks[0], 2))
    assert x.grad is not None
    wanted = torch.zeros(4, 4, dtype=torch.float64)
    wanted.narrow(dim, 0, 2).fill_(2)
    assert torch.equal(x.grad, wanted)
    _check(lambda t: Scatter.apply(TWO, (1, 3), dim, t), (x,))
    _check(lambda a, b: Gather.apply("cpu", dim, a, b), (_double(2, 2), _double(2, 2)))


def test_scalars_become_a_vector() -> None:
    x, y = _double(), _double()
    with pytest.warns(UserWarning, match="all input tensors were scalars"):
        joined = Gather.apply("cpu", 0, x, y)
    assert torch.equal(joined, torch.stack([x, y]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(lambda a, b: Gather.apply("cpu", 0, a, b), (x, y))


def test_complex_tensors_stay_complex() -> None:
    x = torch.randn(4, 2, dtype=torch.complex128, requires_grad=True)
    for output in (
        *Broadcast.apply(TWO, x),
        *ReduceAddCoalesced.apply("cpu", 1, x, x),
        Gather.apply("cpu", 0, *Scatter.apply(TWO, None, 0, x)),
    ):
        assert output.dtype == torch.complex128 and output.shape == x.shape
    _check(lambda t: Broadcast.apply(TWO, t), (x,))
    _check(lambda t: Gather.apply("cpu", 0, *Scatter.apply(TWO, None, 0, t)), (x,))


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

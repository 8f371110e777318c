"""Gradients that are lazily conjugated or negated: their values are reduced, not their memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.direct import init
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World
from support.tree import same_bits

import fastcomm

OPTIONS: list[dict[str, Any]] = [
    {"average": True},
    {"comm_dtype": torch.bfloat16, "scale": 0.5},
]


def _lazy(rank: int, device: torch.device) -> list[torch.Tensor]:
    """Return every way to be lazy, with gaps and turned too."""
    generator = torch.Generator().manual_seed(rank)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.complex64, generator=generator).to(device)

    return [
        made(9).conj(),
        made(5, 5).conj().t(),
        made(4, 6)[:, ::2].conj(),
        made(7).conj().imag,
        made(5, 5).conj().imag.t(),
        torch._neg_view(made(6)),
        torch._neg_view(made(6).conj()),
        torch._neg_view(made(5, 3).real.contiguous().t()),
    ]


def _resolved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the same values; a tensor with gaps keeps them, since norms follow the memory."""
    made = []
    for tensor in tensors:
        dense = tensor.is_contiguous() or tensor.t().is_contiguous()
        copy = tensor if dense else tensor.contiguous()
        made.append(copy.clone().resolve_conj().resolve_neg())
    return made


def _values_are_reduced(world: World, device: torch.device) -> None:
    for options in OPTIONS:
        lazy, plain = _lazy(world.rank, device), _resolved(_lazy(world.rank, device))
        assert all(tensor.is_conj() or tensor.is_neg() for tensor in lazy)
        if world.rank == 1:  # ranks need not be lazy alike
            lazy = _resolved(lazy)
        found = fastcomm.fused_all_reduce_(lazy, **options)
        wanted = fastcomm.fused_all_reduce_(plain, **options)
        for i, (a, b) in enumerate(zip(lazy, plain, strict=True)):
            assert same_bits(a.resolve_conj().resolve_neg().cpu(), b.cpu()), (options, i)
        assert found.total_norm is not None and wanted.total_norm is not None
        assert same_bits(found.partial_norms.cpu(), wanted.partial_norms.cpu())
        assert same_bits(found.total_norm.cpu(), wanted.total_norm.cpu())


@on_ranks(1, 3, environments=TRANSPORTS)
def test_values_are_reduced_where_they_lie(world: World) -> None:
    world.init()
    _values_are_reduced(world, torch.device("cpu"))


@pytest.mark.usefixtures("simulated")
@on_ranks(2)
def test_values_are_reduced_on_devices(world: World) -> None:
    _values_are_reduced(world, init(world))


def _residuals_are_refused(device: torch.device) -> None:
    """Residuals are written in place, so they cannot be lazy."""
    wire = torch.bfloat16
    grads = [torch.full((3,), 1 / 3, device=device)]
    lazy = [torch._neg_view(torch.zeros(3, device=device))]
    with pytest.raises(ValueError, match="lazily"):
        fastcomm.fused_all_reduce_(grads, comm_dtype=wire, residuals=lazy)
    grads = [torch.full((3,), 1 / 3 + 2j, dtype=torch.complex64, device=device)]
    lazy = [torch.zeros(3, dtype=torch.complex64, device=device).conj()]
    with pytest.raises(ValueError, match=r"lazily|complex gradients needs a native group"):
        fastcomm.fused_all_reduce_(grads, comm_dtype=wire, residuals=lazy)
    assert grads[0].tolist() == torch.full((3,), 1 / 3 + 2j).tolist()


@on_ranks(2, environments=TRANSPORTS)
def test_lazy_residuals_are_refused(world: World) -> None:
    world.init()
    _residuals_are_refused(torch.device("cpu"))


@pytest.mark.usefixtures("simulated")
@on_ranks(2)
def test_lazy_residuals_are_refused_on_devices(world: World) -> None:
    _residuals_are_refused(init(world))

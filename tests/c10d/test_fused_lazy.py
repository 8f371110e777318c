"""Gradients that are lazily conjugated or negated: their values are reduced, not their memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.direct import init
from support.ranks import World, run_ranks
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


def _values_are_reduced(world: World, kind: str) -> None:
    device = torch.device("cpu")
    if kind == "sim":
        device = init(world)
    else:
        world.init()
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


@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize("size", [1, 3])
def test_values_are_reduced_where_they_lie(size: int, transport: str) -> None:
    environment = {"FASTCOMM_TRANSPORT": transport}
    run_ranks(size, _values_are_reduced, "cpu", environment=environment)


@pytest.mark.usefixtures("simulated")
def test_values_are_reduced_on_devices() -> None:
    run_ranks(2, _values_are_reduced, "sim")


def _residuals(world: World, kind: str) -> None:
    """Residuals are written in place, so they cannot be lazy."""
    device = torch.device("cpu")
    if kind == "sim":
        device = init(world)
    else:
        world.init()
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


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_lazy_residuals_are_refused(transport: str) -> None:
    run_ranks(2, _residuals, "cpu", environment={"FASTCOMM_TRANSPORT": transport})


@pytest.mark.usefixtures("simulated")
def test_lazy_residuals_are_refused_on_devices() -> None:
    run_ranks(2, _residuals, "sim")

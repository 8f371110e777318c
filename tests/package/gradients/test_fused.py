"""Fused reductions of one process, and clipping: against the definition and against torch."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import fused
from support.places import ACCELERATOR, Place, examples
from torch import nn

import fastcomm
from fastcomm import comm
from fastcomm._gradients.fused import clip_grad_norm_, fused_reduce_add_coalesced, refuse_parameters
from fastcomm.ddp_comm_hooks import FusedState

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@examples(60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 31, 33, 4095, 4096, 4097, 9001]), max_size=5),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=5, max_size=5),
    count=st.integers(1, 9),
    average=st.booleans(),
    scale=st.sampled_from([1.0, 0.25, 1 / 3]),
    wire=st.sampled_from([None, torch.bfloat16, torch.float16]),
    norm_type=st.sampled_from([None, 1.0, 2.0, math.inf]),
    seed=st.integers(0, 2**16),
)
def test_replicas_are_reduced_as_ranks_are(
    place: Place,
    sizes: list[int],
    dtypes: list[torch.dtype],
    count: int,
    average: bool,
    scale: float,
    wire: torch.dtype | None,
    norm_type: float | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lists = [
        [torch.randn(n, generator=generator).to(d) for n, d in zip(sizes, dtypes, strict=False)]
        for _ in range(count)
    ]
    kept = [[value.clone() for value in values] for values in lists]
    there = [
        [value.to(device) for value in values]
        for values, device in zip(lists, place.devices(count), strict=True)
    ]
    sums, result = comm.fused_reduce_add_coalesced(
        there, average=average, scale=scale, comm_dtype=wire, norm_type=norm_type
    )
    for terms, total in zip(zip(*kept, strict=True), sums, strict=True):
        assert total.device == place.first
        assert torch.equal(total.cpu(), fused.reduced(list(terms), average, scale, wire))
    assert all(
        torch.equal(a.cpu(), b)
        for values, before in zip(there, kept, strict=True)
        for a, b in zip(values, before, strict=True)
    )
    assert float(result.found_inf) == 0.0
    if norm_type is None:
        assert result.total_norm is None
        return
    parts = [fused.part(total.cpu(), norm_type) for total in sums]
    assert result.partial_norms.tolist() == parts
    assert result.total_norm is not None
    wanted = torch.tensor(fused.norm(parts, norm_type), dtype=torch.float64)
    assert torch.equal(result.total_norm.cpu(), wanted.to(result.total_norm.dtype))


def test_what_lists_must_have_in_common(place: Place) -> None:
    one, two = torch.ones(3, device=place.first), torch.ones(4, device=place.first)
    for lists, words in (
        ([], "no source"),
        ([[one], [one, one.clone()]], "lists of 1 and of 2"),
        ([[one], [two]], "has invalid size: got 4, but expected 3"),
        ([[one], [one.double()]], "has dtype"),
        ([[one.long()]] * 2, "not floating-point"),
    ):
        with pytest.raises(ValueError, match=words):
            comm.fused_reduce_add_coalesced(lists)


def test_lists_that_begin_on_the_cpu_stay_there() -> None:
    """Memory of another device would be read as the host's."""
    one = torch.ones(3)
    there = one.to("meta")
    for lists in ([[one], [there]], [[one, there], [one, one]]):
        with pytest.raises(ValueError, match="has a tensor on meta, but the first list begins"):
            comm.fused_reduce_add_coalesced(lists)


@pytest.mark.accelerator
def test_lists_of_the_cpu_and_of_a_device_are_refused() -> None:
    one = torch.ones(3)
    there = one.to(ACCELERATOR.devices(1)[0])
    for lists in ([[one], [there]], [[one, there]], [[there], [one]], [[there, one]]):
        with pytest.raises(
            ValueError,
            match=f"has a tensor on {there.device}|not of dense tensors on one CUDA device",
        ):
            comm.fused_reduce_add_coalesced(lists)


def _model() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(70, 90), nn.Linear(90, 10), nn.Linear(5, 5))
    model[:2](torch.randn(4, 70)).square().sum().backward()  # the last one has no gradients
    return model


def test_clipping_has_torchs_signature() -> None:
    theirs = inspect.signature(nn.utils.clip_grad_norm_).parameters
    ours = inspect.signature(fastcomm.clip_grad_norm_).parameters
    assert [(p.name, p.default) for p in theirs.values()] == [
        (p.name, p.default) for p in ours.values() if p.kind != p.KEYWORD_ONLY
    ]


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_clipping_is_torchs(place: Place, norm_type: float, max_norm: float) -> None:
    here, ours, theirs = _model(), _model().to(place.first), _model()
    norm = fastcomm.clip_grad_norm_(ours.parameters(), max_norm, norm_type)
    assert torch.equal(norm.cpu(), fastcomm.clip_grad_norm_(here.parameters(), max_norm, norm_type))
    wanted = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type)
    torch.testing.assert_close(norm.cpu(), wanted, rtol=1e-6, atol=0)
    assert norm.dtype == wanted.dtype and norm.shape == wanted.shape
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-6, atol=0)


@pytest.mark.accelerator
def test_gradients_of_several_devices_have_one_norm() -> None:
    """For a model over devices and the CPU: the bits of the same gradients in one place."""
    grads = [torch.randn(n) * 10**i for i, n in enumerate((700, 9001, 3, 4096, 50))]
    wanted = fastcomm.clip_grad_norm_([_with_gradient(grad) for grad in grads], 1.0)
    one, two, three = ACCELERATOR.devices(3)
    places = [two, torch.device("cpu"), one, three, two]
    there = [_with_gradient(g.to(device)) for g, device in zip(grads, places, strict=True)]
    norm = fastcomm.clip_grad_norm_(there, 1.0)
    assert norm.device == two and torch.equal(norm.cpu(), wanted)


def _with_gradient(grad: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(grad))
    parameter.grad = grad.clone()
    return parameter


def test_corners_of_clipping(place: Place) -> None:
    assert float(fastcomm.clip_grad_norm_([], 1.0)) == 0.0
    parameter = nn.Parameter(torch.ones(3, device=place.first))
    parameter.grad = torch.tensor([3.0, 4.0, math.inf], device=place.first)
    with pytest.raises(RuntimeError, match=r"The total norm of order 2\.0 .* is non-finite"):
        fastcomm.clip_grad_norm_(parameter, 1.0, error_if_nonfinite=True)
    parameter.grad = torch.tensor([3.0, 4.0, 0.0], device=place.first)
    assert float(fastcomm.clip_grad_norm_(parameter, 1.0)) == 5.0
    torch.testing.assert_close(parameter.grad.cpu(), torch.tensor([0.6, 0.8, 0.0]))
    known: Any = torch.tensor(2.0, device=place.first)
    assert fastcomm.clip_grad_norm_(parameter, 1.0, total_norm=known) is known
    torch.testing.assert_close(parameter.grad.cpu(), torch.tensor([0.3, 0.4, 0.0]))
    with pytest.raises(ValueError, match="norm_type is"):
        fastcomm.clip_grad_norm_(parameter, 1.0, 3.0)


def test_a_norm_is_reproducible_where_torchs_need_not_be() -> None:
    """One by one or all at once, with one thread or two."""
    grads = [torch.randn(n) for n in (100_003, 5, 64_000)]
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(comm.fused_reduce_add_coalesced([grads])[1])
    torch.set_num_threads(threads)
    parts = torch.cat(
        [comm.fused_reduce_add_coalesced([[grad]])[1].partial_norms for grad in grads]
    )
    assert torch.equal(results[0].partial_norms, parts) and torch.equal(
        results[1].partial_norms, parts
    )
    assert fastcomm.combined_norm(parts).float() == results[0].total_norm
    with pytest.raises(ValueError, match="a vector of float64"):
        fastcomm.combined_norm(parts.float())


def test_parts_are_combined_where_they_are(place: Place) -> None:
    parts = torch.tensor([9.0, 16.0], dtype=torch.float64).to(place.first)
    combined = fastcomm.combined_norm(parts)
    assert combined.shape == () and combined.dtype == torch.float64 and float(combined) == 5.0
    assert combined.device == place.first
    parts = torch.tensor([1.0, math.nan]).double().to(place.first)
    assert math.isnan(fastcomm.combined_norm(parts, math.inf))


def test_parameters_are_no_gradients() -> None:
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    with pytest.raises(ValueError, match=r"tensor 0 .* is a parameter .*p\.grad for p in"):
        fused_reduce_add_coalesced([weights, weights])
    with pytest.raises(ValueError, match=r"tensor 1 .* is a parameter"):
        refuse_parameters([weights[0].detach(), weights[1]])
    # What autograd made with create_graph=True requires gradients, and is a gradient.
    refuse_parameters([weights[0] * 2])


@pytest.mark.parametrize("max_norm", [-1.0, math.nan])
def test_a_negative_norm_is_refused(max_norm: float) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    with pytest.raises(ValueError, match="from 0 up"):
        clip_grad_norm_([parameter], max_norm)
    with pytest.raises(ValueError, match="from 0 up"):
        FusedState([parameter], max_norm=max_norm)
    assert torch.equal(parameter.grad, torch.ones(3))

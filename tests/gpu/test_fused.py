"""Replicas' gradients reduced in one pass on a GPU or simulated devices: the CPU's bits.

The CPU's sums and norms have tests of their own (tests/package/gradients). Two replicas may be
on one device.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from support import places
from torch import nn

import fastcomm
from fastcomm import comm
from fastcomm._gradients.fused import FusedResult

pytestmark = pytest.mark.accelerator

KIND = places.kind()
SIZES = [0, 1, 31, 32, 33, 4095, 4096, 4097, 70_001]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
NORMS = [None, 1.0, 2.0, math.inf]
WIRES = [None, torch.bfloat16, torch.float16]
Lists = list[list[torch.Tensor]]


needs_two = pytest.mark.skipif(places.count() < 2, reason="needs two devices")


def _lists(count: int, seed: int, kind: str | None = "cpu", apart: bool = False) -> Lists:
    """Return lists of all dtypes at odd places in memory; apart: each on the next device."""
    generator = torch.Generator().manual_seed(seed)
    lists: Lists = []
    for k in range(count):
        device = f"{kind}:{k % places.count()}" if apart else kind
        values: list[torch.Tensor] = []
        for size, dtype in zip(SIZES, itertools.cycle(DTYPES)):
            for skipped in (0, 3, 1):
                room = torch.randn(size + skipped, generator=generator)
                values.append(room.to(device, dtype)[skipped:])
        values.append(torch.randn(6, 70, generator=generator).to(device).t())
        values.append(torch.randn(2, 3, 8, 8, generator=generator).to(device)[:, :, ::2])
        values.append(torch.randn(9, 5, generator=generator, dtype=torch.complex64).to(device))
        lists.append(values)
    return lists


def _equal(on_device: Sequence[torch.Tensor], on_cpu: Sequence[torch.Tensor]) -> None:
    for ours, wanted in zip(on_device, on_cpu, strict=True):
        assert ours.device.type == KIND
        assert ours.dtype == wanted.dtype and ours.stride() == wanted.stride()
        torch.testing.assert_close(ours.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


def _same_findings(ours: FusedResult, wanted: FusedResult) -> None:
    _equal([ours.found_inf, ours.partial_norms], [wanted.found_inf, wanted.partial_norms])
    assert (ours.total_norm is None) == (wanted.total_norm is None)
    if ours.total_norm is not None and wanted.total_norm is not None:
        _equal([ours.total_norm], [wanted.total_norm])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=needs_two)])
def test_bits_are_those_of_the_cpu(count: int, wire: torch.dtype | None, apart: bool) -> None:
    """With all lists on one device, or on several; averages of one or the other."""
    average = (count % 2 == 1) == apart
    scale = 1 / 3 if average else 1.0
    options: Any = {"average": average, "scale": scale, "comm_dtype": wire}
    lists = _lists(count, count, KIND, apart)
    sums, result = comm.fused_reduce_add_coalesced(lists, **options)
    wanted, found = comm.fused_reduce_add_coalesced(_lists(count, count), **options)
    assert all(total.get_device() == 0 for total in sums)
    _equal(sums, wanted)
    _same_findings(result, found)
    assert float(result.found_inf) == 0.0


@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("value", [None, math.inf, -math.inf, math.nan, 3e38])
def test_norms_and_what_is_not_finite(norm_type: float | None, value: float | None) -> None:
    def both(device: str | None) -> tuple[tuple[torch.Tensor, ...], FusedResult]:
        lists = [values[:-1] for values in _lists(2, 5, device)]  # norms of complex ones are of 2
        if value is not None:
            for values in lists:
                values[12].view(-1)[-1:].fill_(value)  # of fp32: 3e38 overflows in the sum
        return comm.fused_reduce_add_coalesced(lists, norm_type=norm_type)

    (sums, result), (wanted, found) = both(KIND), both("cpu")
    _equal(sums, wanted)
    _same_findings(result, found)
    assert float(result.found_inf) == float(value is not None)


def _parameters(device: str | None) -> list[nn.Parameter]:
    (values,) = _lists(1, 9, device)
    parameters = []
    for value in values[:-1]:
        parameters.append(nn.Parameter(torch.zeros_like(value)))
        parameters[-1].grad = value
    return parameters


@pytest.mark.parametrize("norm_type", NORMS[1:])
@pytest.mark.parametrize("max_norm", [0.5, 1e9])
@pytest.mark.parametrize("apart", [False, True])
def test_clipping_has_the_cpus_norm(norm_type: float, max_norm: float, apart: bool) -> None:
    """For gradients on one device, or on all and on the CPU."""
    devices: list[Any] = (
        ["cpu", *(f"{KIND}:{i}" for i in range(places.count()))] if apart else [KIND]
    )
    theirs, ours = _parameters("cpu"), []
    for parameter, device in zip(_parameters("cpu"), itertools.cycle(devices)):
        assert parameter.grad is not None
        ours.append(nn.Parameter(parameter.detach().to(device)))
        ours[-1].grad = places.laid_out(parameter.grad, torch.device(device))
    norm = fastcomm.clip_grad_norm_(ours, max_norm, norm_type)
    wanted = fastcomm.clip_grad_norm_(theirs, max_norm, norm_type)
    assert torch.equal(norm.cpu(), wanted) and norm.device == ours[0].device
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad)


@pytest.mark.parametrize("norm_type", NORMS[1:])
def test_norms_of_parts_are_combined_on_the_device(norm_type: float) -> None:
    lists = [values[:-1] for values in _lists(2, 7, KIND)]
    whole = comm.fused_reduce_add_coalesced(lists, norm_type=norm_type)[1]
    ends = (0, 5, 6, len(lists[0]))
    pieces = [
        comm.fused_reduce_add_coalesced([v[a:b] for v in lists], norm_type=norm_type)[
            1
        ].partial_norms
        for a, b in itertools.pairwise(ends)
    ]
    combined = fastcomm.combined_norm(torch.cat(pieces), norm_type)
    assert combined.device.type == KIND
    assert torch.equal(combined, whole.total_norm)  # fp64 among them


def test_what_is_refused() -> None:
    one = torch.ones(3, device=KIND)
    for lists, words in (
        ([[one]] * 17, "at most 16"),
        ([[one], [one.cpu()]], "list 1 is not"),
        ([[one, one.cpu()]], "list 0 is not"),
        ([[torch.ones(2, dtype=torch.int64, device=KIND)]] * 2, "not floating-point"),
    ):
        with pytest.raises(ValueError, match=words):
            comm.fused_reduce_add_coalesced(lists)
    parameters = [nn.Parameter(one), nn.Parameter(one.clone())]
    for parameter, grad in zip(parameters, (one, one.view(3)), strict=True):
        parameter.grad = grad
    with pytest.raises(ValueError, match="share memory"):
        fastcomm.clip_grad_norm_(parameters, 1.0)


@pytest.mark.gpu  # the simulation has no sparse tensors
def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="list 0 is not"):
        comm.fused_reduce_add_coalesced([[torch.eye(2, device=KIND).to_sparse()]])


@pytest.mark.gpu  # where torch reports every wait
def test_nothing_waits_for_the_device() -> None:
    lists = _lists(2, 3, KIND)
    parameters = _parameters(KIND)
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = comm.fused_reduce_add_coalesced(
            lists, average=True, scale=0.5, comm_dtype=torch.bfloat16
        )[1]
        fastcomm.combined_norm(result.partial_norms)
        fastcomm.clip_grad_norm_(parameters, 1.0)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def test_the_work_is_ordered_behind_the_current_stream() -> None:
    side = places.module().Stream()
    for _ in range(20):
        with places.module().stream(side):
            places.keep_busy(side, milliseconds=1)
            ones = [torch.ones(100_000, device=KIND) for _ in range(4)]
            twos = [one + one for one in ones]
            sums, result = comm.fused_reduce_add_coalesced([ones, twos])
            total = sums[0]
            del ones, twos, sums
        torch.full((100_000,), 7.0, device=KIND)  # memory given back too early would be this
        side.synchronize()
        assert total.eq(3).all() and result.partial_norms.eq(900_000).all()


class _Training:
    """Two replicas' gradients for a fused optimizer that clips, or skips if one is not finite."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(70, 90), nn.Linear(90, 10)).to(KIND)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=0.01, fused=True, capturable=True
        )
        self.lists: Lists = [
            [torch.zeros_like(p) for p in self.model.parameters()] for _ in range(2)
        ]

    def fill(self, seed: int) -> None:
        generator = torch.Generator(KIND).manual_seed(seed)
        for values in self.lists:
            for value in values:
                value.normal_(generator=generator)

    def step(self) -> FusedResult:
        sums, result = comm.fused_reduce_add_coalesced(self.lists, average=True)
        for parameter, total in zip(self.model.parameters(), sums, strict=True):
            parameter.grad = total
        result.feed(self.optimizer, max_norm=1.0)
        self.optimizer.step()
        return result

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def test_a_graph_captures_reduction_clipping_and_step() -> None:
    eager, graphed = _Training(), _Training()
    stream = places.module().Stream()
    for training in (eager, graphed):  # the optimizer's state is created
        training.fill(0)
        with _apart(stream):
            training.step()
    with places.graph(stream) as graph:
        found = graphed.step()
    for seed in range(1, 5):
        eager.fill(seed)
        graphed.fill(seed)
        result = eager.step()
        graph.replay()
        _same_findings(found, _on_cpu(result))
        assert all(map(torch.equal, graphed.weights(), eager.weights()))
    before = graphed.weights()
    graphed.lists[1][0].view(-1)[7] = math.nan
    graph.replay()
    assert float(found.found_inf) == 1.0
    assert all(map(torch.equal, graphed.weights(), before))


@pytest.mark.parametrize("norm_type", NORMS[1:])
def test_a_graph_captures_norms_and_clipping(norm_type: float) -> None:
    """Anything that asked the device for a number, or waited for it, could not be captured."""
    lists = [values[:-1] for values in _lists(2, 3, KIND)]
    parameters = [nn.Parameter(torch.zeros_like(value)) for value in lists[0]]

    def step() -> list[torch.Tensor]:
        sums, result = comm.fused_reduce_add_coalesced(
            lists, average=True, scale=0.5, comm_dtype=torch.bfloat16, norm_type=norm_type
        )
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
        whole = fastcomm.combined_norm(result.partial_norms, norm_type)
        return [whole, fastcomm.clip_grad_norm_(parameters, 1.0, norm_type), *sums]

    stream = places.module().Stream()
    with _apart(stream):
        step()
    with places.graph(stream) as graph:
        found = step()
    for seed in (4, 5):
        for values, news in zip(lists, _lists(2, seed), strict=True):
            for value, new in zip(values, news, strict=False):
                value.copy_(new)
        graph.replay()
        replayed = [value.clone() for value in found]
        assert all(map(torch.equal, replayed, step()))


@contextlib.contextmanager
def _apart(stream: Any) -> Iterator[None]:
    """Work on another stream, after the current one, which goes on after it."""
    here = places.module().current_stream()
    stream.wait_stream(here)
    with places.module().stream(stream):
        yield
    here.wait_stream(stream)


def _on_cpu(result: FusedResult) -> FusedResult:
    total = None if result.total_norm is None else result.total_norm.cpu()
    return FusedResult(total, result.found_inf.cpu(), result.partial_norms.cpu(), result.norm_type)


@pytest.mark.gpu  # only its graphs have nodes to count
def test_three_launches_instead_of_many() -> None:
    import fused_reduce_cuda as bench  # of benchmarks/

    from fastcomm._measure.device_time import launches

    lists = [[torch.randn(n, device=KIND) for n in SIZES * 20] for _ in range(4)]
    # Counted in captured graphs: profilers need more from a system than a device.
    fused = launches(
        lambda: comm.fused_reduce_add_coalesced(lists, average=True, scale=bench.UNSCALE)
    )
    stock = launches(lambda: bench.stock(lists))
    print(f"launches: {fused} fused, {stock} stock")
    assert fused == 3 and stock is not None
    assert stock >= 10 * fused


@needs_two
def test_a_graph_captures_the_reduction_of_several_devices() -> None:
    module, count = places.module(), places.count()
    streams = [module.Stream(device) for device in range(count)]
    lists = _lists(count, 4, KIND, apart=True)
    places.ACCELERATOR.synchronize()
    with contextlib.ExitStack() as stack:
        for stream in reversed(streams):  # the first device is the current one in the end
            stack.enter_context(module.stream(stream))
        comm.fused_reduce_add_coalesced(lists, average=True)  # devices that meet for the first time
        places.ACCELERATOR.synchronize()
        with places.graph(streams[0]) as graph:
            for stream in streams[1:]:
                stream.wait_stream(streams[0])
            sums, result = comm.fused_reduce_add_coalesced(lists, average=True)
            for stream in streams[1:]:
                streams[0].wait_stream(stream)
        for seed in (5, 6):
            for values, news in zip(lists, _lists(count, seed), strict=True):
                for value, new in zip(values, news, strict=True):
                    value.copy_(new)
            places.ACCELERATOR.synchronize()
            graph.replay()
            wanted, found = comm.fused_reduce_add_coalesced(_lists(count, seed), average=True)
            _equal(sums, wanted)
            _same_findings(result, found)

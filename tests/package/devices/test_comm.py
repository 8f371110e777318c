"""The primitives on CPU slots and on devices: what torch expects of its own, and a definition."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.places import ACCELERATOR, Place, examples, laid_out
from support.tree import same_bits, tree_sum
from support.values import FLOATS, INTEGERS, cancelling
from torch.cuda import comm as torch_comm
from torch.utils._python_dispatch import TorchDispatchMode

from fastcomm import comm
from fastcomm._devices import lists as _lists

TWO = ["cpu", "cpu"]


@pytest.mark.parametrize(
    "name",
    ["broadcast", "broadcast_coalesced", "reduce_add", "reduce_add_coalesced", "scatter", "gather"],
)
def test_signatures_are_torchs(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (comm, torch_comm))
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]


@st.composite
def layouts(draw: st.DrawFn, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Draw a tensor of that shape: contiguous, permuted, with gaps, or expanded."""
    seed = draw(st.integers(0, 100))
    count = max(1, torch.Size(shape).numel())
    how = draw(st.sampled_from(["contiguous", "permuted", "gaps", "expanded", "offset"]))
    flat = cancelling(dtype, 2 * count + 3, seed, seed)
    if how == "permuted" and shape:
        order = draw(st.permutations(range(len(shape))))
        inverse = [order.index(i) for i in range(len(shape))]
        wanted = [shape[i] for i in order]
        return flat[: torch.Size(shape).numel()].view(wanted).permute(inverse)
    if how == "gaps" and shape and shape[-1] > 0:
        return (
            flat[: 2 * count].view(*shape[:-1], 2 * shape[-1])[..., ::2]
            if count == (torch.Size(shape).numel())
            else flat[:0].view(shape)
        )
    if how == "expanded" and shape:
        return flat[:1].expand(shape)
    start = 3 if how == "offset" else 0
    return flat[start : start + torch.Size(shape).numel()].view(shape)


SHAPES = st.lists(st.integers(0, 5), max_size=4)
DTYPES = st.sampled_from([*FLOATS, *INTEGERS, torch.bool])


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[torch.Tensor]:
    return [draw(layouts(draw(SHAPES), draw(DTYPES))) for _ in range(draw(st.integers(0, 5)))]


@examples(150)
@given(tensors=tensor_lists(), count=st.integers(1, 5))
def test_broadcast_coalesced_is_a_copy_of_each(
    place: Place, tensors: list[torch.Tensor], count: int
) -> None:
    before = [tensor.clone() for tensor in tensors]
    devices = place.devices(count)
    tensors = [laid_out(tensor, devices[0]) for tensor in tensors]
    lists = comm.broadcast_coalesced(tensors, devices)
    assert len(lists) == count
    assert all(a is b for a, b in zip(lists[0], tensors, strict=True))
    for device, copies in zip(devices[1:], lists[1:], strict=True):
        for copy, source, tensor in zip(copies, before, tensors, strict=True):
            assert copy.device == device and same_bits(copy.cpu(), source)
            assert not copy.requires_grad
            assert copy.stride() == torch.empty_like(tensor).stride()
            if place.name == "cpu":  # on devices blocks of some megabytes hold many
                assert copy.untyped_storage().nbytes() == copy.nbytes
    for copies in lists[1:]:  # each has memory and a version counter of its own
        for i, copy in enumerate(copies):
            versions = [other._version for other in copies]
            copy.zero_()
            versions[i] += 1
            assert [other._version for other in copies] == versions
            assert all(
                same_bits(c.cpu(), b) for c, b in zip(copies[i + 1 :], before[i + 1 :], strict=True)
            )
    assert all(same_bits(a.cpu(), b) for a, b in zip(tensors, before, strict=True))


@st.composite
def sources(draw: st.DrawFn) -> list[list[torch.Tensor]]:
    places = [(draw(SHAPES), draw(DTYPES)) for _ in range(draw(st.integers(0, 4)))]
    return [
        [draw(layouts(shape, dtype)) for shape, dtype in places]
        for _ in range(draw(st.integers(1, 9)))
    ]


@examples(150)
@given(lists=sources())
def test_reduce_add_coalesced_is_the_sum_in_the_order_of_the_tree(
    place: Place, lists: list[list[torch.Tensor]]
) -> None:
    there = [
        [laid_out(value, device) for value in values]
        for values, device in zip(lists, place.devices(len(lists)), strict=True)
    ]
    sums = comm.reduce_add_coalesced(there)
    assert isinstance(sums, tuple) and len(sums) == len(lists[0])
    for total, terms, *placed in zip(sums, zip(*lists, strict=True), *there, strict=True):
        assert total.device == place.first and same_bits(total.cpu(), tree_sum(list(terms)))
        assert all(total.data_ptr() != term.data_ptr() or total.numel() == 0 for term in placed)
        if len(terms) > 1:
            assert same_bits(comm.reduce_add(placed).cpu(), total.cpu())


def _each_on(lists: list[list[torch.Tensor]], place: Place) -> list[list[torch.Tensor]]:
    devices = place.devices(len(lists))
    return [[v.to(device) for v in values] for values, device in zip(lists, devices, strict=True)]


@pytest.mark.accelerator
def test_a_device_may_stand_several_times_in_a_list_and_beside_the_cpu() -> None:
    zero, one, two = ACCELERATOR.devices(3)
    cpu = torch.device("cpu")
    values = [cancelling(dtype, 900, 7) for dtype in (*FLOATS, torch.int64)]
    for devices in ([one, one, zero, one], [two, cpu, one, cpu], [cpu, two, cpu, two], [cpu, one]):
        there = [value.to(devices[0]) for value in values]
        for device, copies in zip(devices, comm.broadcast_coalesced(there, devices), strict=True):
            for copy, value in zip(copies, values, strict=True):
                assert copy.device == device and same_bits(copy.cpu(), value)
        lists = [
            [cancelling(value.dtype, 900, rank) for value in values] for rank in range(len(devices))
        ]
        placed = [[v.to(device) for v in vs] for vs, device in zip(lists, devices, strict=True)]
        for target in set(devices):
            sums = comm.reduce_add_coalesced(placed, target)
            for total, *terms in zip(sums, *lists, strict=True):
                assert total.device == target and same_bits(total.cpu(), tree_sum(terms))
            total = comm.reduce_add([vs[1] for vs in placed], target)
            assert same_bits(total.cpu(), tree_sum([vs[1] for vs in lists]))


@pytest.mark.accelerator
def test_the_work_is_ordered_behind_the_current_streams() -> None:
    """Memory freed at once is not given out again before the copies and sums have read it."""
    devices = ACCELERATOR.devices(3)
    sides = [torch.Stream(device) for device in devices]
    for _ in range(5):
        with contextlib.ExitStack() as stack:
            for side in sides:
                stack.enter_context(side)
            lists = [[torch.ones(5000, device=device) for _ in range(4)] for device in devices]
            copies = comm.broadcast_coalesced(lists[1], [devices[i] for i in (1, 2, 0)])
            sums = comm.reduce_add_coalesced([*lists, *copies], devices[2])
            del lists, copies
            for device in devices:
                torch.full((5000,), 7.0, device=device)
        sides[2].synchronize()
        assert all(total.eq(6).all() for total in sums)


def test_what_serves_other_devices_gives_the_same_bits(place: Place) -> None:
    dtypes = [*FLOATS, torch.int64, torch.float32]
    lists = [[cancelling(dtype, 30, rank) for dtype in dtypes] for rank in range(5)]
    sums = _lists.sums_of_flat(_each_on(lists, place), place.first)
    for total, *terms in zip(sums, *lists, strict=True):
        assert same_bits(total.cpu(), tree_sum(terms))
    assert _lists.sums_of_flat([], place.first) == []


def test_large_lists_are_divided_without_a_seam(place: Place) -> None:
    """Use pieces of all sizes around what a thread takes, at odd places."""
    counts = [0, 1, 7, 65_535, 65_536, 65_537, 1, 300_001, 3, 1 << 20]
    lists = [[cancelling(torch.float32, n, rank, n) for n in counts] for rank in range(3)]
    there = _each_on(lists, place)
    for total, *terms in zip(comm.reduce_add_coalesced(there), *lists, strict=True):
        assert same_bits(total.cpu(), tree_sum(terms))
    copies = comm.broadcast_coalesced(there[0], place.devices(2))[1]
    for copy, tensor in zip(copies, lists[0], strict=True):
        assert torch.equal(copy.cpu(), tensor)
    halves = [[t.to(torch.bfloat16) for t in values] for values in lists]
    sums = comm.reduce_add_coalesced(_each_on(halves, place))
    for total, *terms in zip(sums, *halves, strict=True):
        assert same_bits(total.cpu(), tree_sum(terms))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
def test_seventy_sources(place: Place, dtype: torch.dtype) -> None:
    lists = [[cancelling(dtype, 50, rank)] for rank in range(70)]
    (total,) = comm.reduce_add_coalesced(_each_on(lists, place))
    assert same_bits(total.cpu(), tree_sum([v[0] for v in lists]))


def test_broadcast(place: Place) -> None:
    x = torch.randn(5, 5, device=place.first)
    copies = comm.broadcast(x, [place.first] * 2)
    assert [copy is x for copy in copies] == [True, True]  # as torch does on a tensor's own device
    devices = place.devices(2)
    for copy, device in zip(comm.broadcast(x, devices), devices, strict=True):
        assert copy.device == device and torch.equal(copy.cpu(), x.cpu())
    outputs = [x, torch.empty_like(x, device=devices[1])]
    results = comm.broadcast(x, out=outputs)
    assert all(a is b for a, b in zip(results, outputs, strict=True))
    assert torch.equal(outputs[1].cpu(), x.cpu())
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
        comm.broadcast(x, devices, out=outputs)
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
        comm.broadcast(x)
    match = "Expected all output tensors to have same shape as the source .+ at index 1"
    with pytest.raises(RuntimeError, match=match):
        comm.broadcast(x, out=[x.clone(), x.unsqueeze(0)])


def _sparse(values: torch.Tensor) -> torch.Tensor:
    return values.to_sparse()


MIXED = [
    _sparse(torch.tensor([[0, 1.0, 0], [2, 0, 0]], dtype=torch.float64)),
    torch.arange(5),
    torch.randn(5),
    _sparse(torch.tensor([[0, 1, 0], [2, 0, 0]])),
    torch.randn(0).byte(),
    torch.arange(10, dtype=torch.int32),
    torch.randn(5, dtype=torch.float64),
]


@pytest.mark.parametrize("buffer_size", [20, 256, 10485760])
def test_mixed_lists_with_sparse_tensors(buffer_size: int) -> None:
    lists = comm.broadcast_coalesced(MIXED, TWO, buffer_size)
    for copy, tensor in zip(lists[1], MIXED, strict=True):
        assert copy.layout == tensor.layout and copy.dtype == tensor.dtype
        assert torch.equal(copy.to_dense(), tensor.to_dense())
    for total, tensor in zip(comm.reduce_add_coalesced([MIXED, MIXED]), MIXED, strict=True):
        assert total.layout == tensor.layout
        assert torch.equal(total.to_dense(), 2 * tensor.to_dense())
        version = total._version
        total.zero_()
        assert total._version == version + 1
    dense = [[MIXED[0].to_dense()], [MIXED[0]]]
    assert torch.equal(comm.reduce_add_coalesced(dense)[0], 2 * MIXED[0].to_dense())


def test_tensors_without_plain_memory() -> None:
    zero = torch._efficientzerotensor((3000,))
    (copy,) = comm.broadcast_coalesced([zero], TWO)[1]
    assert copy.tolist() == [0.0] * 3000
    (total,) = comm.reduce_add_coalesced([[zero], [torch.ones(3000)]])
    assert total.tolist() == [1.0] * 3000
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(comm.reduce_add([sparse, sparse]).to_dense(), 2 * torch.eye(3))
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    (copy,) = comm.broadcast_coalesced([quantized], TWO)[1]
    assert copy.dequantize().tolist() == [1.0] * 3


def test_complex_tensors_are_pairs_of_reals(place: Place) -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    real, two = torch.view_as_real(x), place.devices(2)
    x, y = x.to(two[0]), x.to(two[1])
    for results in (comm.broadcast(x, two), comm.broadcast_coalesced([x], two)[1]):
        assert all(torch.equal(result.cpu(), real) for result in results)
    assert torch.equal(comm.gather([x, y], destination="cpu"), torch.cat([real, real]))


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
@pytest.mark.parametrize("lazy", [False, True])
def test_dimensions_are_those_of_the_complex_tensor(place: Place, dim: int, lazy: bool) -> None:
    x, two = torch.randn(4, 6, 5, dtype=torch.complex64), place.devices(2)
    x = x.conj() if lazy else x
    chunks = comm.scatter(place.put(x), two, dim=dim)
    wanted = [torch.view_as_real(chunk.resolve_conj()) for chunk in x.chunk(2, dim)]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(chunks, wanted, strict=True))
    joined = comm.gather([place.put(x), place.put(x)], dim, place.first)
    assert torch.equal(joined.cpu(), torch.view_as_real(torch.cat([x, x], dim).resolve_conj()))
    with pytest.raises(IndexError, match="Dimension out of range"):
        comm.scatter(place.put(x), two, dim=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_what_has_no_dimensions_is_neither_cut_nor_joined(place: Place, dtype: torch.dtype) -> None:
    x, two = place.put(torch.ones((), dtype=dtype)), place.devices(2)
    with pytest.raises(RuntimeError, match="expects at least a 1-dimensional tensor"):
        comm.scatter(x, two)
    with pytest.raises(RuntimeError, match="expects at least a 1-dimensional tensor"):
        comm.scatter(x, two, chunk_sizes=[1, 1])
    with pytest.raises(RuntimeError, match="has incorrect shape"):
        comm.scatter(x, out=[torch.empty(1, dtype=dtype)] * 2)
    with pytest.raises(IndexError, match="tensor has no dimensions"):
        comm.gather([x, x], destination=place.first)
    with pytest.raises(IndexError, match="tensor has no dimensions"):
        comm.gather([x, x], out=torch.empty(2, dtype=dtype))


@pytest.mark.parametrize("lazy", ["x", "out", "both", "neither"])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_complex_out_takes_complex_numbers(place: Place, dim: int, lazy: str) -> None:
    plain = torch.randn(4, 6, dtype=torch.complex64)
    x = place.put(plain.conj() if lazy in ("x", "both") else plain)
    wanted = x.cpu().resolve_conj()

    def empty(*shape: int) -> torch.Tensor:
        made = torch.zeros(*shape, dtype=torch.complex64, device=place.first)
        return made.conj() if lazy in ("out", "both") else made

    two = [empty(4, 6), torch.zeros(4, 6, 2)]  # each as it is
    comm.broadcast(x, out=two)
    assert torch.equal(two[0].cpu(), wanted)
    assert torch.equal(two[1], torch.view_as_real(wanted))
    parts = wanted.split([1, wanted.size(dim) - 1], dim)
    chunks = comm.scatter(x, dim=dim, out=[empty(*part.shape) for part in parts])
    assert all(torch.equal(a.cpu(), b) for a, b in zip(chunks, parts, strict=True))
    joined = comm.gather([x, x], dim, out=empty(*torch.cat([plain, plain], dim).shape))
    assert torch.equal(joined.cpu(), torch.cat([wanted, wanted], dim))
    for out in (empty(4, 6, 2), empty(4)):  # neither pairs of complex numbers nor fewer
        with pytest.raises(RuntimeError, match="have same shape as the source tensor"):
            comm.broadcast(x, out=[out])


def test_reduce_add(place: Place) -> None:
    x, y = (torch.randn(5, 5).to(device) for device in place.devices(2))
    assert torch.equal(comm.reduce_add((x, y)).cpu(), x.cpu() + y.cpu())
    assert comm.reduce_add([x]) is x
    with pytest.raises(ValueError, match="input 1 has invalid size: got 5x4, but expected 5x5"):
        comm.reduce_add([x, y[:, :4]])
    with pytest.raises(ValueError, match="input 1 has invalid size: got 5x4, but expected 5x5"):
        comm.reduce_add_coalesced([[x], [y[:, :4]]])
    with pytest.raises(ValueError, match="lists of 1 and of 2 tensors"):
        comm.reduce_add_coalesced([[x], [x, y]])
    x.requires_grad_()
    comm.reduce_add([x, y]).sum().backward()
    assert x.grad is not None and torch.equal(x.grad.cpu(), torch.ones(5, 5))


@pytest.mark.parametrize(
    ("shape", "dim", "sizes"),
    [((4, 4), 0, None), ((4, 4), 1, None), ((4, 4), -2, None), ((6, 4), 0, (2, 4))],
)
def test_scatter(
    place: Place, shape: tuple[int, ...], dim: int, sizes: tuple[int, ...] | None
) -> None:
    x, two = torch.randn(shape, device=place.first), place.devices(2)
    wanted = x.split(sizes or x.size(dim) // 2, dim)
    chunks = comm.scatter(x, two, sizes, dim)
    for chunk, want, device in zip(chunks, wanted, two, strict=True):
        assert chunk.device == device and torch.equal(chunk.cpu(), want.cpu())
        assert device != x.device or chunk.data_ptr() == want.data_ptr()  # a view
    out = [torch.empty_like(chunk) for chunk in chunks]
    for result, target, want in zip(comm.scatter(x, dim=dim, out=out), out, wanted, strict=True):
        assert result is target and torch.equal(result.cpu(), want.cpu())
    index: list[Any] = [slice(None)] * 2
    index[dim] = slice(1, None)
    errors: list[tuple[str, Callable[[], Any]]] = [
        ("'devices' must not be specified", lambda: comm.scatter(x, two, dim=dim, out=out)),
        ("'chunk_sizes' must not be", lambda: comm.scatter(x, None, (1,), dim=dim, out=out)),
        ("Expected at least one device to scatter to", lambda: comm.scatter(x, (), dim=dim)),
        ("Expected at least one output tensor", lambda: comm.scatter(x, dim=dim, out=[])),
        (
            "Output tensor at index 0 has incorrect shape",
            lambda: comm.scatter(x, dim=dim, out=[out[0].unsqueeze(0), *out[1:]]),
        ),
        (
            r"Total size for output tensors along scatter dim \d+ does not match",
            lambda: comm.scatter(x, dim=dim, out=[out[0][tuple(index)], *out[1:]]),
        ),
        (
            "Expected devices and chunk_sizes to be of same length",
            lambda: comm.scatter(x, [place.first] * 3, (2, 2), dim),
        ),
        ("split_with_sizes expects split_sizes to sum", lambda: comm.scatter(x, two, (1, 1), dim)),
    ]
    for match, call in errors:
        with pytest.raises(RuntimeError, match=match):
            call()
    with pytest.raises(IndexError, match="Dimension out of range"):
        comm.scatter(x, two, dim=2)


def test_there_may_be_fewer_chunks_than_devices(place: Place) -> None:
    assert len(comm.scatter(torch.randn(3), place.devices(5))) == 3
    chunks = comm.scatter(torch.randn(5), place.devices(4))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert [chunk.device for chunk in chunks] == place.devices(3)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather(place: Place, dim: int) -> None:
    x, y = torch.randn(2, 5), torch.randn(2, 5)
    wanted, two = torch.cat([x, y], dim), place.devices(2)
    x, y = x.to(two[0]), y.to(two[1])
    for destination in (None, "cpu", torch.device("cpu"), two[1]):
        joined = comm.gather((x, y), dim, destination)
        assert joined.device == torch.device(destination or place.first)
        assert torch.equal(joined.cpu(), wanted)
    for device in (torch.device("cpu"), two[1]):
        out = torch.empty_like(wanted, device=device)
        assert comm.gather((x, y), dim, out=out) is out
        assert torch.equal(out.cpu(), wanted)
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated"):
        assert torch.equal(comm.gather((x, y), dim, -1), wanted)
    other = y[:, 1:] if dim == 0 else y[1:]
    errors: list[tuple[str, Callable[[], Any]]] = [
        ("'destination' must not be", lambda: comm.gather((x, y), dim, "cpu", out=out)),
        ("Expected at least one tensor to gather from", lambda: comm.gather(())),
        ("same number of dimensions", lambda: comm.gather((x, y.unsqueeze(0)))),
        ("Input tensor at index 1 has invalid shape", lambda: comm.gather((x, other), dim)),
        ("Expected output tensor to have shape", lambda: comm.gather((x, y), dim, out=x)),
    ]
    for match, call in errors:
        with pytest.raises(RuntimeError, match=match):
            call()


class _Copies(TorchDispatchMode):
    """Notes of torch's copies where to, and whether they may be under way when the call returns."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.made.append((args[0].device.type, len(args) > 2 and args[2]))
        elif func is torch.ops.aten._to_copy.default:
            self.made.append(("a new tensor", False))
        return func(*args, **(kwargs or {}))


@pytest.mark.accelerator
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64])
def test_kernels_scatter_and_gather_between_devices(dtype: torch.dtype) -> None:
    """Ordered by the current streams: what is given or taken may be written to at once."""
    devices = ACCELERATOR.devices(3)
    values = torch.arange(3000).to(dtype).view(60, 50)
    for _ in range(3):
        x = values.to(devices[0])
        with _Copies() as copies:
            chunks = comm.scatter(x, devices, [10, 20, 30])
            if dtype == torch.complex64:
                chunks = tuple(torch.view_as_complex(chunk) for chunk in chunks)
        assert not copies.made
        assert [chunk.device for chunk in chunks] == devices
        if devices[1] != devices[0]:
            x[10:].fill_(-1)
        assert torch.equal(torch.cat([chunk.cpu() for chunk in chunks]), values)
        there = [part.to(device) for part, device in zip(values.split(20), devices, strict=True)]
        with _Copies() as copies:
            joined = comm.gather(there, destination=devices[1])
        for part in there:
            part.fill_(-1)
        if dtype == torch.complex64:
            joined = torch.view_as_complex(joined)
        assert not copies.made and torch.equal(joined.cpu(), values)


@pytest.mark.accelerator
def test_what_kernels_do_not_scatter_or_gather_torch_does() -> None:
    devices = ACCELERATOR.devices(3)
    x = torch.arange(36.0, device=devices[0]).view(6, 6)
    chunks = comm.scatter(x, devices, dim=1)  # with gaps
    assert torch.equal(torch.cat([chunk.cpu() for chunk in chunks], 1), x.cpu())
    assert torch.equal(comm.gather(chunks, 1, devices[2]).cpu(), x.cpu())
    target = torch.empty(2, 6, device=devices[1])
    assert comm.scatter(x, out=[target] * 3)[0] is target  # the last one wins, as in torch
    assert torch.equal(target.cpu(), x[4:].cpu())
    leaf = x.clone().requires_grad_()
    comm.gather(comm.scatter(leaf, devices), 0, devices[1]).sum().backward()
    assert leaf.grad is not None and torch.equal(leaf.grad.cpu(), torch.ones(6, 6))
    mixed = comm.gather([chunks[0], chunks[1].double()], 1, devices[0])
    assert mixed.dtype == torch.float64


def test_what_goes_to_the_host_is_there_on_return() -> None:
    a, b = torch.randn(2, 3), torch.randn(4, 3)
    both = torch.cat([a, b])
    with _Copies() as copies:
        assert torch.equal(comm.gather([a, b], destination="cpu", out=None), both)
        comm.gather([a, b], out=torch.empty(6, 3))
        comm.broadcast(a, out=[torch.empty(2, 3), torch.empty(2, 3)])
        comm.scatter(both, out=[torch.empty(2, 3), torch.empty(4, 3)])
    assert [how for how in copies.made if how[0] == "cpu"] == [("cpu", False)] * 6


def test_memory_formats_are_kept(place: Place) -> None:
    x = torch.randn(10, 3, 8, 8).contiguous(memory_format=torch.channels_last).to(place.first)
    two = place.devices(2)
    chunks = comm.scatter(x, two)
    assert all(c.is_contiguous(memory_format=torch.channels_last) for c in chunks)
    for destination in ("cpu", two[1]):
        joined = comm.gather(chunks, destination=destination)
        assert joined.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(joined.cpu(), x.cpu())
    (copy,) = comm.broadcast_coalesced([x], two)[1]
    assert copy.is_contiguous(memory_format=torch.channels_last)
    (total,) = comm.reduce_add_coalesced([[x], [x.contiguous().to(two[1])]])
    assert total.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(total.cpu(), 2 * x.cpu())


def test_devices() -> None:
    x = torch.randn(2)
    none: list[Sequence[int]] = [[], ()]
    for bad in none:
        with pytest.raises(RuntimeError, match="Expected at least one device"):
            comm.broadcast_coalesced([x], bad)
    with pytest.raises(ValueError, match="meta"):
        comm.scatter(x, ["meta"])
    if not torch.accelerator.is_available():
        with pytest.raises(RuntimeError, match="finds no accelerator"):
            comm.broadcast_coalesced([x], [0, 1])
        with pytest.raises(RuntimeError, match="finds no accelerator"):
            comm.broadcast(x, ["cuda:0"])
    with pytest.raises(RuntimeError, match="All tensors must be on devices"):
        comm.broadcast_coalesced([x.to("meta")], TWO)


def test_results_outlive_the_call_and_can_be_resized_and_saved() -> None:
    x = [torch.arange(1000.0), torch.arange(10.0)]
    kept = comm.broadcast_coalesced(x, TWO)[1][1]
    comm.empty_cache()
    assert torch.equal(kept, x[1])
    kept.resize_(100)[10:] = 7
    assert kept[:10].tolist() == x[1].tolist()


def test_memory_is_used_again() -> None:
    x = [torch.randn(1 << 18) for _ in range(4)]
    comm.empty_cache()
    places = set()
    for _ in range(5):
        copies = comm.broadcast_coalesced(x, TWO)[1]
        places.add(copies[0].data_ptr())
        del copies
    assert len(places) == 1

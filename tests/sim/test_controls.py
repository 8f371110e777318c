"""Negative controls: each rule that orders several devices' work is left out once, and reported.

Every case does something with the product on simulated devices, without a hazard. Then one rule is
left out, in C++ by ``FC_CONTROL`` (csrc/core/control.h), in Python by replacing a function with
nothing, and the simulation has to report it, whatever the timing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.ranks import World, run_ranks
from torch import nn

import sim

pytestmark = pytest.mark.usefixtures("simulated")

Tensors = list[torch.Tensor]
APART = "0-1 none, 0-2 none, 1-2 none"  # no device reaches another one's memory


def _sides(count: int = 3) -> list[torch.Stream]:
    return [torch.sim.Stream(device) for device in range(count)]


def _synchronize() -> None:
    for device in range(4):
        torch.sim.synchronize(device)


class _On:
    """Makes all of these streams current."""

    def __init__(self, streams: list[torch.Stream]) -> None:
        self.streams = streams

    def __enter__(self) -> None:
        self.before = [torch.sim.current_stream(s.device_index) for s in self.streams]
        for stream in self.streams:
            torch.sim.set_stream(stream)
        torch.sim.set_device(0)

    def __exit__(self, *_: object) -> None:
        for stream in self.before:
            torch.sim.set_stream(stream)
        torch.sim.set_device(0)


def _made(
    device: int, count: int = 3, numel: int = 2000, dtype: torch.dtype = torch.float32
) -> Tensors:
    place = torch.device("sim", device)
    return [torch.full((numel,), float(i), dtype=dtype, device=place) for i in range(count)]


def _lists(dtype: torch.dtype = torch.float32) -> list[Tensors]:
    return [_made(device, dtype=dtype) for device in range(3)]


# What the library orders between devices.


def _broadcast() -> None:
    from fastcomm import comm

    tensors = _made(0)
    copies = comm.broadcast_coalesced(tensors, [0, 1, 2])
    for tensor in tensors:
        tensor.add_(1)  # when all have read it
    assert copies[2][1].eq(1).all()


def _sum() -> None:
    from fastcomm import comm

    lists = _lists()
    totals = comm.reduce_add_coalesced(lists, 0)
    for values in lists:
        for value in values:
            value.zero_()
    assert totals[2].eq(6).all()


def _fused_sum() -> None:
    from fastcomm import comm

    lists = _lists()
    totals, _found = comm.fused_reduce_add_coalesced(lists)
    for values in lists:
        for value in values:
            value.zero_()
    assert totals[2].eq(6).all()


def _staged() -> None:
    from fastcomm import comm

    tensors = _made(0, numel=60_000)
    copies = comm.broadcast_coalesced(tensors, [0, 1, 2])
    totals = comm.reduce_add_coalesced(copies, 1)
    assert totals[2].eq(6).all()


def _staged_again() -> None:
    from fastcomm import comm

    for value in range(4):  # the halves of pinned memory take turns
        ones = [torch.full((60_000,), float(value), device="sim:0")]
        copies = comm.broadcast_coalesced(ones, [0, 1, 2])
    assert copies[2][0].eq(3).all()


# Memory that other streams have allocated.


def _used_elsewhere(
    use: Callable[[list[Tensors]], object], dtype: torch.dtype = torch.float32
) -> None:
    """Use tensors on side streams, and free them."""
    lists = _lists(dtype)
    _synchronize()
    with _On(_sides()):
        kept = use(lists)
        del lists
    for device in range(3):
        torch.zeros(4, device=f"sim:{device}")  # from this launch on the memory is another's
    del kept


def _copies_on_a_side() -> None:
    from fastcomm import comm

    def use(lists: list[Tensors]) -> object:
        copies = comm.broadcast_coalesced(lists[0], [0, 1, 2])[1:]
        return copies

    _used_elsewhere(use)


def _sum_on_a_side() -> None:
    from fastcomm import comm

    _used_elsewhere(lambda lists: comm.reduce_add_coalesced(lists, 0))


def _scatter_on_a_side() -> None:
    from fastcomm import comm

    _used_elsewhere(lambda lists: comm.scatter(lists[0][0], [1, 2]))


def _gather_on_a_side() -> None:
    from fastcomm import comm

    _used_elsewhere(lambda lists: comm.gather([values[0] for values in lists], 0, 0))


def _fused_sum_on_a_side() -> None:
    from fastcomm import comm

    _used_elsewhere(comm.fused_reduce_add_coalesced)


def _norm_on_a_side() -> None:
    from fastcomm._distributed import backend

    _used_elsewhere(lambda lists: backend.load().gradient_norms(lists[0], 2))


def _parts_on_a_side() -> None:
    import fastcomm

    def use(lists: list[Tensors]) -> object:
        return fastcomm.combined_norm(lists[0].pop())

    _used_elsewhere(use, torch.float64)


# Tensors that the library makes for itself.


def _not_plain(tensors: Tensors) -> Tensors:
    return [torch.complex(value, value).conj().imag for value in tensors]


def _copies_of_what_is_not_plain() -> None:
    from fastcomm import comm

    comm.broadcast_coalesced(_not_plain(_made(0)), [0, 1, 2])


def _sum_of_what_is_not_plain() -> None:
    from fastcomm import comm

    comm.reduce_add_coalesced([_not_plain(_made(0)), _not_plain(_made(1))], 0)


def _fused_sum_of_what_is_not_plain() -> None:
    from fastcomm import comm

    comm.fused_reduce_add_coalesced([_not_plain(_made(0)), _not_plain(_made(1))])


# What Python orders: derivatives that work on several devices, threads, streams of copies.


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).to("sim:0")


def _launch_everywhere() -> None:
    """Launch something in all current streams: from then on memory that they got back is theirs."""
    for device in range(3):
        torch.zeros(4, device=f"sim:{device}")


def _train(**options: Any) -> None:
    """Train on side streams, without a host wait that would hide what is missing."""
    import fastcomm

    model = _model()
    parallel: Any = fastcomm.nn.parallel.DataParallel(model, [0, 1, 2], **options)
    x = torch.randn(12, 8, device="sim:0")
    _synchronize()
    with _On(_sides()):
        for _step in range(3):
            parallel(x).square().sum().backward()
            _launch_everywhere()
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.01)
            model.zero_grad(set_to_none=True)
        _launch_everywhere()


class _OnItsOwnStream(nn.Module):
    """A module whose replicas each compute on a stream that the others do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outer, own = torch.sim.current_stream(x.device), torch.sim.Stream(x.device)
        own.wait_stream(outer)
        x.record_stream(own)
        with own:
            result: torch.Tensor = self.norm(x)
        outer.wait_stream(own)
        result.record_stream(outer)
        return result


def _synchronized_norms() -> None:
    import fastcomm

    model = _OnItsOwnStream().to("sim:0")
    parallel: Any = fastcomm.nn.parallel.DataParallel(model, [0, 1, 2], buffers="sync_batchnorm")
    x = torch.randn(12, 8, device="sim:0")
    with torch.no_grad():
        parallel(x)
    _synchronize()


def _scatter_from_the_host() -> None:
    from fastcomm.nn.parallel._functions import Scatter

    rows = torch.arange(24.0).view(12, 2).pin_memory()
    chunks = Scatter.apply([torch.device("sim", d) for d in range(3)], None, 0, rows)
    for chunk in chunks:
        chunk.mul(2)


def _scatter_and_gather() -> None:
    from fastcomm.nn.parallel._functions import Gather, Scatter

    devices = [torch.device("sim", d) for d in range(3)]
    x = torch.ones(12, 8, device="sim:0", requires_grad=True)
    _synchronize()
    with _On(_sides()):
        for _round in range(3):
            chunks = Scatter.apply(devices, None, 0, x)
            joined = Gather.apply(devices[0], 0, *(chunk * 2 for chunk in chunks))
            (joined * 3).sum().backward()
            del chunks, joined
            _launch_everywhere()


def _second_derivative() -> None:
    from fastcomm.nn.parallel._functions import Broadcast, ReduceAddCoalesced

    devices = [torch.device("sim", d) for d in range(3)]
    x = torch.ones(500, device="sim:0", requires_grad=True)
    _synchronize()
    with _On(_sides()):
        for _round in range(3):
            copies = Broadcast.apply(devices, x)
            squares = [copy.square() for copy in copies]
            (total,) = ReduceAddCoalesced.apply(devices[0], 1, *squares)
            (grad,) = torch.autograd.grad(total.sum(), x, create_graph=True)
            grad.sum().backward()
            del copies, squares, total, grad
            _launch_everywhere()


def _late_input() -> None:
    import fastcomm

    parallel: Any = fastcomm.nn.parallel.DataParallel(_model(), [0, 1, 2])
    x = torch.zeros(12, 8, device="sim:0")
    _synchronize()
    with _On(_sides()), torch.no_grad():
        x.add_(1)
        parallel(x)


def _other_streams() -> None:
    import fastcomm

    parallel: Any = fastcomm.nn.parallel.DataParallel(_model().eval(), [0, 1, 2])
    x = torch.zeros(12, 8, device="sim:0")
    _synchronize()
    for _round in range(2):
        with _On(_sides()), torch.no_grad():
            parallel(x)


def _threads_without_streams() -> None:
    from fastcomm.nn.parallel.parallel_apply import _ThreadContext

    enter = _ThreadContext.enter

    def with_default_streams(self: Any, place: Any, streams: dict[Any, Any]) -> Any:
        return enter(
            self,
            place,
            {
                d: torch.Stream(stream_id=0, device_index=d.index, device_type=s.device_type)
                for d, s in streams.items()
            },
        )

    _ThreadContext.enter = with_default_streams  # type: ignore[method-assign]


def _memory_of_any_stream() -> None:
    from fastcomm.nn.parallel.replicate import _BroadcastBuffers

    def as_now(self: Any) -> list[torch.Stream]:
        return [torch.accelerator.current_stream(device) for device in self._devices[1:]]

    _BroadcastBuffers._streams = property(as_now, _nothing)  # type: ignore[assignment]


def _nothing(*_: object, **__: object) -> list[torch.Stream]:
    return []


def _without(module: str, *names: str) -> Callable[[], None]:
    """Return a call that replaces functions with nothing."""

    def leave_out() -> None:
        import importlib

        there = importlib.import_module(module)
        for name in names:
            assert callable(getattr(there, name))
            setattr(there, name, _nothing)

    return leave_out


STREAMS = "fastcomm._devices.streams"
# What is done, what is left out (a control of C++, or a function of Python), and who reports.
CONTROLS: dict[str, tuple[Callable[[], None], str | Callable[[], None], str]] = {
    "broadcast: ready": (_broadcast, "drop_ready", r"multi_copy.* reads .* aten::fill_"),
    "broadcast: finished": (_broadcast, "drop_finished", r"aten::add\S* .* writes .* multi_copy"),
    "sum: ready": (_sum, "drop_ready", r"multi_reduce.* reads .* aten::fill_"),
    "sum: finished": (_sum, "drop_finished", r"aten::zero_.* writes .* multi_reduce"),
    "fused sum: ready": (_fused_sum, "drop_ready", r"multi_gradient.* reads .* aten::fill_"),
    "fused sum: finished": (_fused_sum, "drop_finished", r"aten::zero_.* multi_gradient"),
    "staged: staged": (_staged, "drop_staged", r"multi_copy.* reads .* multi_copy"),
    "staged: worked": (_staged, "drop_worked", r"multi_copy.* reads .* multi_reduce"),
    "staged: drained": (_staged_again, "drop_drained", r"writes .* reads"),
    "copies: recorded": (_copies_on_a_side, "forget_use", r"the allocator .* multi_copy"),
    "sum: recorded": (_sum_on_a_side, "forget_use", r"the allocator .* multi_reduce"),
    "fused sum: recorded": (_fused_sum_on_a_side, "forget_use", r"the allocator .* multi_gradient"),
    "norm: recorded": (_norm_on_a_side, "forget_use", r"the allocator .* multi_gradient"),
    "parts: recorded": (_parts_on_a_side, "forget_use", r"the allocator .* gradient_norm"),
    "copies: kept": (_copies_of_what_is_not_plain, "free_early", r"multi_copy.* been freed"),
    "sum: kept": (_sum_of_what_is_not_plain, "free_early", r"multi_reduce.* been freed"),
    "fused sum: kept": (
        _fused_sum_of_what_is_not_plain,
        "free_early",
        r"multi_gradient.* been freed",
    ),
    "train, staged: fork": (
        *(_train, _without(STREAMS, "fork")),
        r"multi_copy.* \(device 1, stream 2\) reads .* which aten::",
    ),
    "second derivative, staged: fork": (
        *(_second_derivative, _without(STREAMS, "fork")),
        r"aten::mul\S* \(device 1.* reads .* which multi_copy.* writes",
    ),
    "second derivative, staged: join": (
        *(_second_derivative, _without(STREAMS, "join")),
        r"aten::mul\S* \(device 1.* reads .* which multi_copy.* writes",
    ),
    "scatter: recorded": (_scatter_on_a_side, "forget_use", r"the allocator .* multi_copy"),
    "gather: recorded": (_gather_on_a_side, "forget_use", r"the allocator .* multi_copy"),
    "gather, staged: use": (  # by torch's copies
        *(_scatter_and_gather, _without(STREAMS, "use")),
        r"the allocator .* aten::copy_",
    ),
    "scatter: receive": (
        *(_scatter_from_the_host, _without(STREAMS, "receive")),
        r"aten::mul\S* .* reads .* which aten::copy_ .* writes",
    ),
    "batch norm: receive": (
        *(_synchronized_norms, _without(STREAMS, "receive")),
        r"reads .* which aten::var_mean\S* .* writes",
    ),
    "replicas' threads: streams": (
        *(_late_input, _threads_without_streams),
        r"\(device [012], stream [123]\) reads .* which .* writes",
    ),
    "replicas that last: streams": (
        *(_other_streams, _memory_of_any_stream),
        r"multi_copy.* writes .* which .* reads",
    ),
}


def _case(_: World, name: str) -> list[str]:
    sim.load()
    case, left_out, _pattern = CONTROLS[name]
    if callable(left_out):
        left_out()
    with contextlib.suppress(AssertionError):  # wrong numbers may result, by chance
        case()
    _synchronize()
    return sim.hazards()


def _environment(name: str) -> dict[str, str]:
    return {"SIM_LINKS": APART} if "staged" in name else {}


def _all_in_order(_: World, names: list[str]) -> None:
    sim.load()
    for name in names:
        CONTROLS[name][0]()
        _synchronize()
        assert not (found := sim.hazards()), (name, found)


@pytest.mark.parametrize("links", ["", APART])
def test_without_a_control_all_is_in_order(links: str) -> None:
    names = [name for name in CONTROLS if _environment(name).get("SIM_LINKS", "") == links]
    run_ranks(1, _all_in_order, names, environment={"SIM_LINKS": links} if links else {})


@pytest.mark.parametrize("name", CONTROLS)
def test_each_control_is_reported(name: str) -> None:
    _case_of, left_out, pattern = CONTROLS[name]
    environment = _environment(name)
    if isinstance(left_out, str):
        environment["FC_CONTROL"] = left_out
    (found,) = run_ranks(1, _case, name, environment=environment)
    assert any(re.search(pattern, text) for text in found), found

"""Negative controls: each rule that orders several devices' work is left out once, and reported.

Every case does something with the product on simulated devices, without a hazard. Then one rule is
left out, in C++ by ``FC_CONTROL`` (csrc/core/control.h), in Python by replacing a function with
nothing, and the simulation has to report it, whatever the timing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from support.ranks import World, run_ranks
from torch import nn

import fastcomm
import sim
from fastcomm import _native, comm
from fastcomm.nn.parallel._functions import Broadcast, Gather, ReduceAddCoalesced, Scatter
from fastcomm.nn.parallel.parallel_apply import _ThreadContext
from fastcomm.nn.parallel.replicate import _BroadcastBuffers

pytestmark = pytest.mark.usefixtures("simulated")

Tensors = list[torch.Tensor]
DEVICES = [0, 1, 2]
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


def _made(device: int, numel: int = 2000) -> Tensors:
    place = torch.device("sim", device)  # fp64, as norms of parts are
    return [torch.full((numel,), float(i), dtype=torch.float64, device=place) for i in range(3)]


def _lists() -> list[Tensors]:
    return [_made(device) for device in DEVICES]


# What is done with a list for each device.


def _copies(lists: list[Tensors]) -> list[Tensors]:
    return [list(copies) for copies in comm.broadcast_coalesced(lists[0], DEVICES)[1:]]


def _sums(lists: list[Tensors]) -> Sequence[torch.Tensor]:
    return comm.reduce_add_coalesced(lists, 0)


def _fused_sums(lists: list[Tensors]) -> Sequence[torch.Tensor]:
    return comm.fused_reduce_add_coalesced(lists)[0]


def _scattered(lists: list[Tensors]) -> Sequence[torch.Tensor]:
    return comm.scatter(lists[0][0], [1, 2])


def _gathered(lists: list[Tensors]) -> torch.Tensor:
    return comm.gather([values[0] for values in lists], 0, 0)


def _norms(lists: list[Tensors]) -> object:
    return _native.load().gradient_norms(lists[0], 2)


def _norm_of_parts(lists: list[Tensors]) -> torch.Tensor:
    return fastcomm.combined_norm(lists[0].pop())


# What the library orders between devices.


def _broadcast() -> None:
    tensors = _made(0)
    copies = comm.broadcast_coalesced(tensors, DEVICES)
    for tensor in tensors:
        tensor.add_(1)  # when all have read it
    assert copies[2][1].eq(1).all()


def _summed(add: Callable[[list[Tensors]], Sequence[torch.Tensor]]) -> None:
    lists = _lists()
    totals = add(lists)
    for values in lists:
        for value in values:
            value.zero_()
    assert totals[2].eq(6).all()


def _staged() -> None:
    copies = comm.broadcast_coalesced(_made(0, numel=60_000), DEVICES)
    totals = comm.reduce_add_coalesced(copies, 1)
    assert totals[2].eq(6).all()


def _staged_again() -> None:
    for value in range(4):  # the halves of pinned memory take turns
        ones = [torch.full((60_000,), float(value), device="sim:0")]
        copies = comm.broadcast_coalesced(ones, DEVICES)
    assert copies[2][0].eq(3).all()


def _on_a_side(use: Callable[[list[Tensors]], object]) -> None:
    """Use tensors of other streams on side streams, and free them."""
    lists = _lists()
    _synchronize()
    with _On(_sides()):
        kept = use(lists)
        del lists
    _launch_everywhere()  # from here on the memory is another's
    del kept


def _not_plain(use: Callable[[list[Tensors]], object]) -> None:
    """Let the library make tensors for itself."""
    use([[torch.complex(value, value).conj().imag for value in values] for values in _lists()])


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
    model = _OnItsOwnStream().to("sim:0")
    parallel: Any = fastcomm.nn.parallel.DataParallel(model, [0, 1, 2], buffers="sync_batchnorm")
    x = torch.randn(12, 8, device="sim:0")
    with torch.no_grad():
        parallel(x)
    _synchronize()


def _scatter_from_the_host() -> None:
    rows = torch.arange(24.0).view(12, 2).pin_memory()
    chunks = Scatter.apply([torch.device("sim", d) for d in range(3)], None, 0, rows)
    for chunk in chunks:
        chunk.mul(2)


def _scatter_and_gather() -> None:
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
    parallel: Any = fastcomm.nn.parallel.DataParallel(_model(), [0, 1, 2])
    x = torch.zeros(12, 8, device="sim:0")
    _synchronize()
    with _On(_sides()), torch.no_grad():
        x.add_(1)
        parallel(x)


def _other_streams() -> None:
    parallel: Any = fastcomm.nn.parallel.DataParallel(_model().eval(), [0, 1, 2])
    x = torch.zeros(12, 8, device="sim:0")
    _synchronize()
    for _round in range(2):
        with _On(_sides()), torch.no_grad():
            parallel(x)


def _threads_without_streams() -> None:
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
    def as_now(self: Any) -> list[torch.Stream]:
        return [torch.accelerator.current_stream(device) for device in self._devices[1:]]

    _BroadcastBuffers._streams = property(as_now, _nothing)  # type: ignore[assignment, arg-type]


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
SUM, FUSED_SUM = partial(_summed, _sums), partial(_summed, _fused_sums)
# What is done, what is left out (a control of C++, or a function of Python), and who reports.
CONTROLS: dict[str, tuple[Callable[[], None], str | Callable[[], None], str]] = {
    "broadcast: ready": (_broadcast, "drop_ready", r"multi_copy.* reads .* aten::fill_"),
    "broadcast: finished": (_broadcast, "drop_finished", r"aten::add\S* .* writes .* multi_copy"),
    "sum: ready": (SUM, "drop_ready", r"multi_reduce.* reads .* aten::fill_"),
    "sum: finished": (SUM, "drop_finished", r"aten::zero_.* writes .* multi_reduce"),
    "fused sum: ready": (FUSED_SUM, "drop_ready", r"multi_gradient.* reads .* aten::fill_"),
    "fused sum: finished": (FUSED_SUM, "drop_finished", r"aten::zero_.* multi_gradient"),
    "staged: staged": (_staged, "drop_staged", r"multi_copy.* reads .* multi_copy"),
    "staged: worked": (_staged, "drop_worked", r"multi_copy.* reads .* multi_reduce"),
    "staged: drained": (_staged_again, "drop_drained", r"writes .* reads"),
    **{
        f"{use.__name__}: recorded": (
            partial(_on_a_side, use),
            "forget_use",
            f"the allocator .* {kernel}",
        )
        for use, kernel in (
            *((each, "multi_copy") for each in (_copies, _scattered, _gathered)),
            *((each, "multi_gradient") for each in (_fused_sums, _norms)),
            *((_sums, "multi_reduce"), (_norm_of_parts, "gradient_norm")),
        )
    },
    **{
        f"{use.__name__}: kept": (partial(_not_plain, use), "free_early", f"{kernel}.* been freed")
        for use, kernel in (
            (_copies, "multi_copy"),
            (_sums, "multi_reduce"),
            (_fused_sums, "multi_gradient"),
        )
    },
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

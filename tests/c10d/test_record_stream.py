"""``record_stream`` on tensors in a group's memory. On simulated devices."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.direct import joined
from support.ranks import World, run_ranks

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")

NUMEL = 4000
REPORT = r"aten::fill_\S* .* writes .* reads, and nothing orders"
FORGETS = {"FC_CONTROL": "forget_use"}
Record = Callable[[torch.Tensor, torch.Stream], object]
Found = dict[str, list[str]]


class _Pair(torch.Tensor):
    """A subclass with two tensors inside, to each of which it passes on what is done to it."""

    tensors: list[torch.Tensor]

    @staticmethod
    def __new__(cls, *tensors: torch.Tensor) -> Any:
        first = tensors[0]
        self = torch.Tensor._make_wrapper_subclass(
            cls, first.shape, dtype=first.dtype, device=first.device
        )
        self.tensors = list(tensors)
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, given: Any, named: Any = None) -> None:
        for inside in given[0].tensors:
            function(inside, *given[1:], **(named or {}))


def _plain(tensor: torch.Tensor, stream: torch.Stream) -> None:
    tensor.record_stream(stream)


def _by_a_view(tensor: torch.Tensor, stream: torch.Stream) -> None:
    tensor.view(2, -1)[1, 7:9].record_stream(stream)


def _by_another_storage(tensor: torch.Tensor, stream: torch.Stream) -> None:
    part = torch.empty(0, device=tensor.device)
    part.set_(tensor.untyped_storage(), 100, (5,), (1,))
    part.record_stream(stream)


def _by_a_subclass(tensor: torch.Tensor, stream: torch.Stream) -> None:
    _Pair(torch.ones_like(tensor), tensor).record_stream(stream)


def _by_a_parameter(tensor: torch.Tensor, stream: torch.Stream) -> None:
    torch.nn.Parameter(tensor).record_stream(stream)


def _in_inference_mode(tensor: torch.Tensor, stream: torch.Stream) -> None:
    with torch.inference_mode():
        tensor[3:].record_stream(stream)


def _compiled(tensor: torch.Tensor, stream: torch.Stream) -> None:
    torch.compile(_plain, backend="eager")(tensor, stream)


def _by_the_library(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """Use it between a process's devices, which record what they use."""
    with stream:
        fastcomm.comm.broadcast_coalesced([tensor], [tensor.device, torch.device("sim", 5)])


def _twice(tensor: torch.Tensor, stream: torch.Stream) -> None:
    tensor.record_stream(torch.sim.current_stream(tensor.device))
    for _ in range(2):
        tensor.record_stream(stream)


WAYS: dict[str, Record] = {
    each.__name__[1:]: each
    for each in (
        _plain,
        _by_a_view,
        _by_another_storage,
        _by_a_subclass,
        _by_a_parameter,
        _in_inference_mode,
        _compiled,
        _by_the_library,
        _twice,
    )
}


def _made(device: torch.device) -> tuple[torch.Tensor, int]:
    tensor = fastcomm.empty(NUMEL, device=device)
    assert fastcomm.is_shared(tensor)
    return tensor.fill_(1.0), tensor.data_ptr()


def _again(place: int, device: torch.device) -> torch.Tensor:
    """Write all of that memory, in the next tensors there."""
    parts = [fastcomm.empty(NUMEL // 2, device=device) for _ in range(2)]
    assert min(part.data_ptr() for part in parts) == place
    return torch.cat([part.fill_(2.0) for part in parts])


def _used(
    device: torch.device, record: Record, sides: list[torch.Stream], before: bool = False
) -> list[str]:
    """Use a tensor on streams that are held, free it, use its memory; return what has no order."""
    tensor, place = _made(device)
    results = []
    with contextlib.ExitStack() as held:
        for side in sides:
            side.wait_stream(torch.sim.current_stream(device))
            held.callback(sim.load().Gate(side.device_index, side.stream_id).open)
            if before:
                record(tensor, side)
            with side:
                results.append(tensor * 3)
            if not before:
                record(tensor, side)
        del tensor
        written = _again(place, device)  # the host waits for none of them
    torch.sim.synchronize(device)
    found = sim.hazards()
    if not found:  # else the numbers are anything
        assert all(each.unique().item() == 3.0 for each in results)
        assert written.unique().item() == 2.0
    return found


def _all_ways(world: World) -> Found:
    device = joined(world)
    return {
        name: _used(device, record, [torch.sim.Stream(device)]) for name, record in WAYS.items()
    }


def _all_moments(world: World) -> Found:
    device = joined(world)
    return {
        f"{count} streams, {'before' if before else 'after'} use": _used(
            device, _plain, [torch.sim.Stream(device) for _ in range(count)], before
        )
        for count in (1, 3)
        for before in (True, False)
    }


def _while_captured(world: World) -> Found:
    """Free a tensor while a stream that still uses it is captured; then end the capture."""
    device = joined(world)
    rooms = [_made(device) for _ in range(3)]  # in a capture no more is made
    del rooms
    outer, side = torch.sim.current_stream(device), torch.sim.Stream(device)
    tensor, place = _made(device)
    side.wait_stream(outer)
    written = None
    with contextlib.ExitStack() as held:
        held.callback(sim.load().Gate(side.device_index, side.stream_id).open)
        with side:
            tripled = tensor * 3
        tensor.record_stream(side)
        with torch.sim.graph(side):
            del tensor
            with outer:
                others = [_made(device) for _ in range(2)]
        elsewhere = place not in [other for _, other in others]
        if elsewhere:
            written = _again(place, device)
    torch.sim.synchronize(device)
    found = sim.hazards()
    if not found:
        assert elsewhere and written is not None
        assert (tripled.unique().item(), written.unique().item()) == (3.0, 2.0)
    return {"while captured": found}


def _after_its_group(world: World) -> Found:
    """Free a tensor in use when its group is gone: its memory goes later than the use ends."""
    device = joined(world)
    side = torch.sim.Stream(device)
    tensor, _place = _made(device)
    side.wait_stream(torch.sim.current_stream(device))
    sim.load().sleep(side.device_index, side.stream_id, 200_000)
    with side:
        tripled = tensor * 3
    tensor.record_stream(side)
    dist.destroy_process_group()
    del tensor
    world.init("cpu:fastcomm,sim:fastcomm", "again")
    dist.all_reduce(data := torch.ones(3, device=device))
    side.synchronize()
    assert (tripled.unique().item(), data.unique().item()) == (3.0, world.size)
    return {"after its group": sim.hazards()}


def _of_another_device(world: World) -> bool:
    """Record a stream of another device; return whether the memory waits for it."""
    device = joined(world)
    side = torch.sim.Stream(4 + world.rank)
    with contextlib.ExitStack() as held:
        held.callback(sim.load().Gate(side.device_index, side.stream_id).open)
        tensor, place = _made(device)
        torch.sim.synchronize(device)
        tensor.record_stream(side)
        del tensor
        _again(place, device)
        time.sleep(0.05)
        waits = not torch.sim.current_stream(device).query()
    torch.sim.synchronize(device)
    return waits


CASES = [_all_ways, _all_moments, _while_captured, _after_its_group]


@pytest.mark.parametrize("case", CASES)
def test_memory_in_use_by_recorded_streams_is_not_used_again(case: Callable[..., Found]) -> None:
    for found in run_ranks(2, case):
        assert found and not any(found.values()), found


@pytest.mark.parametrize("case", CASES[:-1])
def test_use_that_is_forgotten_is_reported(case: Callable[..., Found]) -> None:
    for found in run_ranks(2, case, environment=FORGETS):
        assert all(any(re.search(REPORT, text) for text in texts) for texts in found.values()), (
            found
        )


def test_streams_of_other_devices_count() -> None:
    assert run_ranks(2, _of_another_device) == [True] * 2

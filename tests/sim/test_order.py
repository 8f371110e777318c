"""Unordered uses of memory: each kind is reported, in every run, and ordered uses are not."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

import pytest
import torch
from support.patience import ENDS
from support.ranks import World, run_outcomes, run_ranks

import sim

pytestmark = pytest.mark.usefixtures("simulated")

Case = Callable[[torch.Stream, bool], object]


def _order(first: torch.Stream, second: torch.Stream) -> None:
    event = torch.sim.Event()
    event.record(first)
    event.wait(second)


def _read_after_write(side: torch.Stream, ordered: bool) -> object:
    tensor = torch.zeros(1000, device="sim:1").add_(1)
    if ordered:
        _order(torch.sim.current_stream(1), side)
    with side:
        return tensor, tensor * 3


def _write_after_read(side: torch.Stream, ordered: bool) -> object:
    tensor = torch.zeros(1000, device="sim:1")
    _order(torch.sim.current_stream(1), side)
    with side:
        twice = tensor * 2
    if ordered:
        _order(side, torch.sim.current_stream(1))
    tensor.fill_(7)
    return tensor, twice


def _write_after_write(side: torch.Stream, ordered: bool) -> object:
    tensor = torch.zeros(1000, device="sim:1")
    if ordered:
        _order(torch.sim.current_stream(1), side)
    with side:
        tensor.fill_(3)
    return tensor


def _freed_in_use(side: torch.Stream, ordered: bool) -> object:
    tensor = torch.zeros(1000, device="sim:1")
    _order(torch.sim.current_stream(1), side)
    with side:
        twice = tensor * 2
    if ordered:
        tensor.record_stream(side)
    del tensor
    return twice, torch.ones(5, device="sim:1")  # the launch that overwrites what was freed


def _written_on_another_device(side: torch.Stream, ordered: bool) -> object:
    tensor = torch.zeros(1000, device="sim:1")
    torch.sim.synchronize(1)
    with side:
        tensor.add_(1)
        copy = tensor.to("sim:2")  # in the side stream
    if not ordered:
        tensor.add_(1)  # in the default stream, which is not ordered with the copy
    return tensor, copy


def _pinned_read_early(side: torch.Stream, ordered: bool) -> object:
    pinned = torch.ones(1000).pin_memory()
    here = torch.empty(1000, device="sim:1")
    there = torch.empty(1000, device="sim:1")
    here.copy_(pinned, non_blocking=True)
    if ordered:
        torch.sim.synchronize(1)
    with side:
        if ordered:
            there.fill_(2)
        pinned.copy_(there, non_blocking=True)
    return here, there, pinned


def _after_the_host(side: torch.Stream, ordered: bool) -> object:
    tensor = torch.zeros(1000, device="sim:1")
    if ordered:
        torch.sim.current_stream(1).synchronize()
    else:
        side.synchronize()
    with side:
        return tensor, tensor * 2


CASES: dict[str, tuple[Case, str]] = {
    "read_after_write": (
        _read_after_write,
        r"aten::mul\S* .* reads .* which aten::add\S* .* writes",
    ),
    "write_after_read": (_write_after_read, r"aten::fill_\S* .* writes .* which aten::mul"),
    "write_after_write": (
        _write_after_write,
        r"aten::fill_\S* .* writes .* which aten::\S+ .* writes",
    ),
    "freed_in_use": (_freed_in_use, r"the allocator .* writes .* which aten::mul\S* .* reads"),
    "other_device": (
        _written_on_another_device,
        r"aten::add\S* .* writes .* which aten::copy_ .* reads",
    ),
    "pinned": (_pinned_read_early, r"aten::copy_ .* writes .* which aten::copy_ .* reads"),
    "host": (_after_the_host, r"aten::mul\S* .* reads .* which aten::zero_"),
}


def _case(_: World, name: str, ordered: bool) -> list[str]:
    sim.load()
    case, _pattern = CASES[name]
    found: list[str] = []
    for _repeat in range(3):
        side = torch.sim.Stream(1)
        kept = case(side, ordered)
        found = sim.hazards()
        torch.sim.synchronize(1)
        if not ordered and not found:
            return []
        del kept
        torch.sim.synchronize(1)
        sim.hazards()  # what results when the memory is used again
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_is_missing_is_reported_every_time(name: str) -> None:
    (found,) = run_ranks(1, _case, name, False)
    assert any(re.search(CASES[name][1], text) for text in found), found


@pytest.mark.parametrize("name", CASES)
def test_what_is_ordered_is_not_reported(name: str) -> None:
    assert run_ranks(1, _case, name, True) == [[]]


def _parts(_: World) -> None:
    sim.load()
    whole = torch.zeros(64, 64, device="sim:1")
    torch.sim.synchronize(1)
    sides = [torch.sim.Stream(1) for _part in range(4)]
    for part, side in enumerate(sides):
        with side:
            whole[:, part::4].fill_(part)  # disjoint, element by element
            whole[part].mul(1)
    found = sim.hazards()
    assert found and all("aten::mul" in text for text in found), found  # rows cross the columns
    torch.sim.synchronize(1)
    for part, side in enumerate(sides):
        with side:
            whole[:, part::4].add_(1)
    assert not sim.hazards()


def test_parts_of_a_tensor_are_told_apart() -> None:
    run_ranks(1, _parts)


def _careless(_: World) -> None:
    sim.load()
    _read_after_write(torch.sim.Stream(1), ordered=False)


def test_a_rank_that_leaves_a_hazard_fails() -> None:
    (outcome,) = run_outcomes(1, _careless)
    assert outcome.error and "uses of memory without order" in outcome.error


def _queues(_: World) -> bool:
    native = sim.load()
    streams = [torch.sim.Stream(3) for _ in range(2)]
    gate = native.Gate(3, streams[0].stream_id)  # everything after it in the same queue waits too
    with streams[1]:
        late = torch.ones(1, device="sim:3")
    done = torch.sim.Event()
    done.record(streams[1])
    one = os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"  # where it must not pass
    deadline = time.monotonic() + (0.2 if one else ENDS)
    while not (passed := done.query()) and time.monotonic() < deadline:
        time.sleep(0.01)
    gate.open()
    torch.sim.synchronize(3)
    assert late.item() == 1
    return passed


@pytest.mark.parametrize("queues", [1, 8, 32])
def test_streams_share_hardware_queues(queues: int) -> None:
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": str(queues)}
    (passed,) = run_ranks(1, _queues, environment=environment)
    assert passed == (queues > 1)


def _graph(_: World) -> None:
    sim.load()
    stream, side = torch.sim.Stream(2), torch.sim.Stream(2)
    value = torch.zeros(100, device="sim:2")
    torch.sim.synchronize(2)
    with torch.sim.graph(stream) as graph:
        _order(stream, side)
        with side:
            twice = value * 2
        _order(side, stream)
        value.add_(1)
    assert value.sum() == 0  # nothing has run
    torch.sim.synchronize(2)
    for _repeat in range(3):
        graph.replay()
    assert value.tolist() == [3] * 100 and twice.tolist() == [4] * 100
    with pytest.raises(RuntimeError, match="unjoined"), torch.sim.graph(stream):
        _order(stream, side)
        with side:
            value.mul(2)
    outside = torch.sim.Event()
    outside.record(torch.sim.current_stream(2))
    with torch.sim.graph(stream), pytest.raises(RuntimeError, match="uncaptured"):
        outside.wait(stream)
    for refused in (stream.synchronize, lambda: torch.sim.synchronize(2)):
        invalid = pytest.raises(RuntimeError, match="previous error during capture")
        capturing = pytest.raises(RuntimeError, match="capturing")
        with invalid, torch.sim.graph(stream), capturing:
            refused()
    with torch.sim.graph(stream):
        _order(stream, side)
        with side:
            value.add_(1)
        value.mul(2)  # not ordered with the side stream
        _order(side, stream)
    assert any("aten::mul" in text for text in sim.hazards())


def test_streams_are_captured_and_replayed() -> None:
    run_ranks(1, _graph)

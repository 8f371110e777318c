"""Modules at work at the same time: results, surroundings, exceptions."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.places import ACCELERATOR, Place
from torch import nn
from torch._utils import ExceptionWrapper

from fastcomm.nn.parallel.parallel_apply import get_a_var, parallel_apply

TWO = ["cpu", "cpu"]


def test_results(place: Place) -> None:
    modules = [nn.Linear(10, 5), nn.Linear(10, 5)]
    inputs, two = [torch.randn(2, 10), torch.randn(2, 10)], place.devices(2)
    wanted = [module(x) for module, x in zip(modules, inputs, strict=True)]
    modules = [module.to(device) for module, device in zip(modules, two, strict=True)]
    inputs = [x.to(device) for x, device in zip(inputs, two, strict=True)]
    for given_inputs in (inputs, [(x,) for x in inputs], [[x] for x in inputs]):
        for devices in (None, two):
            outputs = parallel_apply(modules, given_inputs, None, devices)
            for ours, theirs in zip(outputs, wanted, strict=True):
                place.check_alike(ours, theirs)
    outputs = parallel_apply(modules, [(), ()], [{"input": x} for x in inputs], two)
    for ours, theirs in zip(outputs, wanted, strict=True):
        place.check_alike(ours, theirs)


def test_they_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    assert parallel_apply([lambda _: meeting.wait(10) >= 0] * 3, [0] * 3, None, ["cpu"] * 3)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_threads_compute_with_the_callers_number_of_threads() -> None:
    """Matrix products ask OpenMP, whose answer is per thread until torch has set it."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = (line.split()[-1] for line in maps if "libgomp" in line)
    path = next((path for path in paths if "/torch" in path), None)  # other packages have theirs
    if path is None:
        pytest.skip("torch's OpenMP is not libgomp")
    threads = ctypes.CDLL(path).omp_get_max_threads
    assert parallel_apply([lambda _: threads()] * 2, [0] * 2) == [1, 1]


_PROGRAM = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor):
            print(function.overloadpacket.__name__, args[0].dtype)
        return function(*args, **(kwargs or {}))

with Calls():
    import fastcomm.nn.parallel.parallel_apply
"""


def test_vector_functions_have_been_called_before_threads_call_them() -> None:
    """Their first calls, if made at the same time, may give other bits; see `_first_calls`."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    called = set(done.stdout.splitlines())
    for name in ("tanh", "exp", "log", "sqrt", "sin", "cos", "erf"):
        assert {f"{name} torch.float32", f"{name} torch.float64"} <= called


class _Look(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "dtype": torch.mm(x, x).dtype,
            "cache": torch.is_autocast_cache_enabled(),
        }


@pytest.mark.parametrize("count", [1, 3])
def test_threads_have_the_callers_surroundings(count: int) -> None:
    def look() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = parallel_apply([_Look()] * count, [torch.ones(2, 2)] * count)
        return found

    plain = {"grad": True, "inference": False, "dtype": torch.float32, "cache": True}
    assert look() == [plain] * count
    with torch.no_grad():
        assert look() == [plain | {"grad": False}] * count
    with torch.inference_mode():
        assert all(found["inference"] for found in look())
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert look() == [plain | {"dtype": torch.bfloat16, "cache": False}] * count
    assert look() == [plain] * count


@pytest.mark.accelerator
@pytest.mark.parametrize("count", [1, 3])
def test_threads_are_on_their_devices_in_the_callers_streams(count: int) -> None:
    """Each on its own device, with the caller's streams of all of them."""
    devices = ACCELERATOR.devices(5)[-count:]
    sides = [torch.Stream(device) for device in devices]
    before = torch.accelerator.current_device_index()

    def look(_: torch.Tensor) -> tuple[int, list[torch.Stream], torch.device]:
        made = torch.ones(1, device=ACCELERATOR.kind).device
        streams = [torch.accelerator.current_stream(device) for device in devices]
        return torch.accelerator.current_device_index(), streams, made

    with contextlib.ExitStack() as stack:
        for side in sides:
            stack.enter_context(side)
        inputs = [torch.ones(1, device=device) for device in devices]
        found = parallel_apply([look] * count, inputs)
        # Where there are fewer devices, the last stream of each is current.
        current = dict(zip(devices, sides, strict=True))
        streams = [current[device] for device in devices]
        assert found == [(device.index, streams, device) for device in devices]
    assert torch.accelerator.current_device_index() == before


def test_a_replica_that_cannot_begin_to_draw_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        """A pass that replica 1 cannot enter; leaving is the library's own."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def enter(self, part: int) -> None:
            if part == 1:
                raise MemoryError("no seat")
            self._real.enter(part)

    module = importlib.import_module("fastcomm.nn.parallel.parallel_apply")
    begin = module.begin_pass
    monkeypatch.setattr(module, "begin_pass", lambda: Failing(begin()))
    unseen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", unseen.append)
    with pytest.raises(MemoryError, match=r"(?s)in replica 1 on device cpu.*no seat"):
        parallel_apply([_Look()] * 2, [torch.ones(2, 2)] * 2)
    assert not unseen, "leave() raised too"


@pytest.mark.parametrize("count", [1, 2])
def test_an_exception_comes_out_with_the_replicas_number(place: Place, count: int) -> None:
    class Failing(nn.Module):
        def forward(self, *inputs: Any) -> Any:
            return dict[str, Any]()["wonderful"]

    ended = []

    def other(_: Any) -> None:
        ended.append(True)

    name = "cpu" if place.name == "cpu" else place.first.index
    match = f"Caught KeyError in replica 0 on device {name}.\nOriginal Traceback[\\s\\S]+wonderful"
    with pytest.raises(KeyError, match=match):
        parallel_apply([Failing(), other][:count], [None] * count, None, place.devices(count))
    assert len(ended) == count - 1


class _Entered:
    """A context that says when it is entered and left, and in which thread."""

    def __init__(self, name: str, log: list[tuple[int, str]]) -> None:
        self.name, self.log = name, log

    def __enter__(self) -> None:
        self.log.append((threading.get_ident(), self.name))

    def __exit__(self, *error: object) -> None:
        self.log.append((threading.get_ident(), f"left {self.name}"))


@pytest.mark.parametrize("devices", [["cuda:0", "cuda:1", "cuda:2", "cuda:1"], ["cuda:1"]])
def test_threads_enter_the_callers_streams(
    monkeypatch: pytest.MonkeyPatch, devices: list[str]
) -> None:
    """All of them, since replicas may meet; their own device's last. No device is needed here."""
    log: list[tuple[int, str]] = []

    def current_stream(device: torch.device) -> _Entered:
        log.append((threading.get_ident(), f"which on {device.index}"))
        return _Entered(f"stream {device.index}", log)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr(torch.accelerator, "current_stream", current_stream)
    monkeypatch.setattr(torch.accelerator, "device_index", lambda i: _Entered(f"device {i}", log))
    meeting = threading.Barrier(len(devices))  # so that threads have different ids

    def work(device: str) -> int:
        meeting.wait(10)
        log.append((threading.get_ident(), "works"))
        return threading.get_ident()

    threads = parallel_apply([work] * len(devices), devices, None, devices)
    caller, used = threading.get_ident(), sorted({int(device[-1]) for device in devices})
    asked = [what for thread, what in log if thread == caller and what.startswith("which")]
    assert sorted(asked) == [f"which on {i}" for i in used]
    assert log[: len(used)] == [(caller, what) for what in asked]
    for thread, device in zip(threads, devices, strict=True):
        own = int(device[-1])
        steps = [what for t, what in log if t == thread and not what.startswith("which")]
        entered, left = steps[: steps.index("works")], steps[steps.index("works") + 1 :]
        assert sorted(entered[::2]) == [f"device {i}" for i in used]
        assert [s[-1] for s in entered[::2]] == [s[-1] for s in entered[1::2]]
        assert entered[-2:] == [f"device {own}", f"stream {own}"]
        assert left == [f"left {what}" for what in reversed(entered)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [KeyError, ValueError, NotImplementedError, FileNotFoundError])
def test_exceptions_are_wrapped_as_by_torch(kind: type[Exception], count: int) -> None:
    def fails(*_: Any) -> None:
        raise kind("no such thing")

    with pytest.raises(kind) as caught:
        parallel_apply([fails] * count, [()] * count, None, TWO[:count])
    try:
        fails()
    except kind:
        theirs = ExceptionWrapper(where="in replica 0 on device cpu")
    with pytest.raises(kind) as wanted:
        theirs.reraise()
    assert type(caught.value) is type(wanted.value) is kind
    assert str(caught.value).splitlines()[:2] == str(wanted.value).splitlines()[:2]
    assert str(caught.value).splitlines()[0].startswith(f"Caught {kind.__name__} in replica 0 on")
    assert "no such thing" in str(caught.value).splitlines()[-1]


def test_lengths_that_differ() -> None:
    module = nn.Identity()
    unlike: list[list[Any]] = [[[]], [[1], [{}, {}]], [[1], None, TWO]]
    for arguments in unlike:
        with pytest.raises(AssertionError, match="The number of modules 1 is not equal to"):
            parallel_apply([module], *arguments)


def test_get_a_var() -> None:
    x = torch.ones(1)
    assert get_a_var([1, {"k": (2, [x])}]) is x
    assert get_a_var([1, {"k": "text"}]) is None

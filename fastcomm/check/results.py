"""Checks of the results of operations, element by element.

Inputs are whole numbers whose sums are exact, so each element has one right value whatever the
order. That sums of any numbers have the same bits everywhere and every time is checked separately.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _native, comm
from fastcomm._devices.slots import served
from fastcomm._measure.cases import CASES
from fastcomm._measure.cases.base import buffers_from, count_wrong, pattern, pattern_sum
from fastcomm._measure.objects import all_gather_object
from fastcomm.check.checker import SHORT, Checker

OPERATIONS = (
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
    "all_gather",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all_single",
)
_REPEATS = 5


def devices_of_one() -> list[torch.device]:
    """Return the devices of a process, or two slots on the CPU."""
    module = torch.get_device_module(served())
    count = module.device_count() if module.is_available() else 0
    return [torch.device(served(), i) for i in range(count)] or [torch.device("cpu")] * 2


def primitives(checker: Checker) -> None:
    """Run what DataParallel is made of, from and to every device of the process."""
    devices = devices_of_one()

    def broadcast(numel: int) -> int:
        wanted = pattern(numel, torch.float32, 0)
        copies = [copy for root in devices for copy in comm.broadcast(wanted.to(root), devices)]
        return sum(count_wrong(copy, wanted) for copy in copies)

    def reduce_add(numel: int) -> int:
        terms = [pattern(numel, torch.float32, i).to(device) for i, device in enumerate(devices)]
        wanted = pattern_sum(numel, torch.float32, len(devices))
        return sum(count_wrong(comm.reduce_add(terms, root), wanted) for root in devices)

    def scatter_and_gather(numel: int) -> int:
        wanted = pattern(numel * len(devices), torch.float32, 0)
        wrong = 0
        for root in devices:
            parts = comm.scatter(wanted.to(root), devices)
            wrong += sum(map(count_wrong, parts, wanted.chunk(len(devices))))
            wrong += count_wrong(comm.gather(parts, destination=root), wanted)
        return wrong

    for name, size in {"short": SHORT, "long": checker.sizes.long}.items():
        for body in (broadcast, reduce_add, scatter_and_gather):
            row = checker.check(name, body.__name__, size, partial(body, size // 4))
            checker.report(row)


def is_taken(checker: Checker, group: dist.ProcessGroup) -> bool:
    """Run a first operation, and ask which way it took."""
    tensor = checker.ordinary(4, torch.float32).fill_(1.0)

    def first() -> int:
        dist.all_reduce(tensor, group=group)
        checker.raise_unless_used(tensor, group)
        return int((tensor.cpu() != checker.rank.size).sum())

    row = checker.check("first", "all_reduce", tensor.nbytes, first)
    checker.report(row)
    return bool(row["verdict"] == "ok")


def operations(checker: Checker, group: dist.ProcessGroup) -> None:
    """Run each operation in one launch, in several, and in memory that peers have mapped."""
    long = checker.sizes.long
    kinds = {"one-shot": SHORT, "staged": long, "in place": long}
    for name, size in kinds.items():
        if name == "in place" and not _has_place(checker, group):
            continue
        maker = partial(checker.surely_placed, group) if name == "in place" else checker.ordinary
        for operation in OPERATIONS:
            for dtype in (torch.float32, torch.bfloat16):

                def body(operation: str = operation, dtype: torch.dtype = dtype) -> int:
                    with buffers_from(maker):  # noqa: B023 (called before the next turn)
                        case = CASES[operation](size, dtype, checker.rank.rank, checker.rank.size)  # noqa: B023
                    return case.check(group, checker.control)

                row = checker.check(name, operation, size, body)
                checker.report({**row, "dtype": str(dtype).removeprefix("torch.")})


def _has_place(checker: Checker, group: dist.ProcessGroup) -> bool:
    """Tell whether the path has memory that operations use in place; all ranks have to ask."""

    def body() -> int:
        checker.surely_placed(group, 1024, torch.float32)
        return 0

    row = checker.check("in place", "empty", 4096, body)
    checker.report(row)
    return bool(row["verdict"] == "ok")


def bits(checker: Checker, group: dist.ProcessGroup) -> None:
    """Check that sums of any numbers have the same bits on all ranks and in every repetition."""
    generator = torch.Generator().manual_seed(checker.rank.rank)
    numel = checker.sizes.long // 4
    given = torch.randn(numel, generator=generator).to(checker.device)

    def body() -> int:
        found = []
        for _ in range(_REPEATS):
            tensor = given.clone()
            dist.all_reduce(tensor, group=group)
            found.append(tensor.cpu().view(torch.int32))
        first = found[0].clone()
        dist.broadcast(first, 0, group=checker.control)
        return sum(int(torch.ne(each, first).sum()) for each in found)

    checker.report(checker.check("same bits", "all_reduce", numel * 4, body))


def two_at_once(checker: Checker, group: dist.ProcessGroup) -> None:
    """Check with another group at work at the same time, on its own streams."""
    size, rank = checker.rank.size, checker.rank.rank
    numel = checker.sizes.long // 4
    second: list[dist.ProcessGroup] = []

    def body() -> int:
        if not second:
            second.append(checker.make_group())
        tensors = [checker.ordinary(numel, torch.float32) for _ in range(2 * _REPEATS)]
        for i, tensor in enumerate(tensors):
            tensor.fill_(float(rank + i))
        works = [
            dist.all_reduce(tensor, group=(group, second[0])[i % 2], async_op=True)
            for i, tensor in enumerate(tensors)
        ]
        for work in works:
            work.wait()
        total = size * (size - 1) // 2
        return sum(int((t.cpu() != total + i * size).sum()) for i, t in enumerate(tensors))

    checker.report(checker.check("two groups at once", "all_reduce", numel * 4, body))


def contexts(checker: Checker) -> None:
    """Note the devices on which each rank has a context beside its own: memory taken in vain."""
    own = checker.device.index
    mine = [device for device in _native.load().device_contexts() if device != own]
    row = checker.check("contexts", "", 0, lambda: 0)
    row["extra_contexts"] = all_gather_object(mine, checker.control)
    checker.report(row)


def under_graph(checker: Checker, group: dist.ProcessGroup) -> None:
    """Check captured calls, replayed among eager ones."""
    size, rank = checker.rank.size, checker.rank.rank
    for numel in (SHORT // 4, checker.sizes.long // 4):

        def body(numel: int = numel) -> int:
            static = checker.ordinary(numel, torch.float32).zero_()
            eager = static.clone()
            checker.synchronize()
            stream = torch.get_device_module(checker.device).Stream(checker.device)
            with _capture(stream) as graph:
                dist.all_reduce(static, group=group)
            wrong = 0
            with stream:
                for turn in range(_REPEATS):
                    static.fill_(float(rank + turn))
                    eager.fill_(float(rank - turn))
                    graph.replay()
                    dist.all_reduce(eager, group=group)
                    total = size * (size - 1) // 2
                    wrong += int((static.cpu() != total + turn * size).sum())
                    wrong += int((eager.cpu() != total - turn * size).sum())
            checker.synchronize()
            return wrong

        checker.report(checker.check("under a graph", "all_reduce", numel * 4, body))


@contextlib.contextmanager
def _capture(stream: Any) -> Iterator[Any]:
    """Capture what is given to a stream; yield an object with ``replay()``."""
    module = torch.get_device_module(stream.device)
    if stream.device.type != "cuda":  # a simulation
        with module.graph(stream) as captured:
            yield captured
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        yield graph


def under_load(checker: Checker, group: dist.ProcessGroup) -> None:
    """Check beside matrix products on another stream of the device, or in another thread."""
    with buffers_from(checker.ordinary):
        cases = [
            CASES[operation](
                checker.sizes.long, torch.float32, checker.rank.rank, checker.rank.size
            )
            for operation in ("all_reduce", "all_gather_into_tensor")
        ]
    for case in cases:

        def body(case: Any = case) -> int:
            with _busy(checker.device):
                return sum(case.check(group, checker.control) for _ in range(_REPEATS))

        checker.report(checker.check("under load", case.name, case.nbytes, body))


# Edges of the matrices that keep a device at work, and how many products are issued at a time so
# that it has no pause.
_EDGES = {"cpu": 256, "cuda": 4096}
_AHEAD = 4


class _busy:
    """Keeps a device, or a core, at work while it is entered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun, self._end = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        try:
            if self._device.type != "cpu":  # else this thread makes a context on the first one
                torch.get_device_module(self._device).set_device(self._device)
            edge = _EDGES.get(self._device.type, 512)
            a = torch.ones(edge, edge, device=self._device)
            stream = None if self._device.type == "cpu" else torch.Stream(self._device)
            while not self._end.is_set():
                with stream or contextlib.nullcontext():
                    for _ in range(_AHEAD):
                        a @ a
                self._begun.set()
                if stream is not None:
                    stream.synchronize()
        except Exception as error:
            self._error = error
        finally:
            self._begun.set()

    def __enter__(self) -> None:
        self._thread.start()
        self._begun.wait()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

"""Time of the device and time of the host, each measured without the other.

On a GPU the work is queued behind a kernel that waits, so that the device finds everything queued
once it begins: what events around the work then show is the device's time alone. Whether the wait
was long enough is asked of the first event; else the sample is taken again behind a longer one. The
host's time is what it took to queue the work meanwhile. On the CPU both are one.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Work = Callable[[], Any]
WARM_UP = 3


@dataclass(frozen=True)
class Sample:
    """Milliseconds of one run."""

    device_ms: float
    host_ms: float


def queue(work: Work, cycles: int, before: Work | None = None) -> Sample | None:
    """Queue work behind a kernel that waits so many cycles, on the current CUDA device and stream.

    Args:
        work: what is timed. What it returns lives until the device has done it.
        cycles: of the device's clock.
        before: queued between the waiting kernel and the work, and not timed.

    Returns:
        Its times; None where the device began before all of it was queued: the host was too slow,
        or the work waits for the device.
    """
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    if before is not None:
        before()
    begin.record()
    start = time.perf_counter()
    result = work()
    host_ms = 1e3 * (time.perf_counter() - start)
    end.record()
    queued_in_time = not begin.query()
    end.synchronize()
    del result
    return Sample(begin.elapsed_time(end), host_ms) if queued_in_time else None


class CpuClock:
    """The wall's."""

    def sample(self, work: Work) -> Sample:
        begin = time.perf_counter()
        result = work()
        ms = 1e3 * (time.perf_counter() - begin)
        del result  # not within the time: what it was made of is given back
        return Sample(ms, ms)


class CudaClock:
    """Events behind a kernel that waits, on the current stream."""

    LONGEST = 4_000_000_000  # cycles: about two seconds

    def __init__(self) -> None:
        self._cycles = 1_000_000

    def sample(self, work: Work) -> Sample:
        while True:
            start = time.perf_counter()
            sample = queue(work, self._cycles)
            if sample is not None:
                return sample
            self._cycles *= 2
            if self._cycles > self.LONGEST:
                ms = 1e3 * (time.perf_counter() - start)
                raise RuntimeError(
                    f"the work waits for the device, or takes the host up to {ms:.0f} ms: its time "
                    "on the device cannot be told apart"
                )


def clock_for(device: str) -> CpuClock | CudaClock:
    """Return the clock of a device, given as "cpu" or "cuda:0"."""
    return CpuClock() if device == "cpu" else CudaClock()


def in_turn(sides: Mapping[str, Work], repeats: int, device: str) -> dict[str, list[Sample]]:
    """Take ``repeats`` samples of each side, in another order in each round."""
    clock = clock_for(device)
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    order = random.Random(1)
    for repeat in range(repeats + WARM_UP):
        for side in order.sample(list(sides), len(sides)):
            sample = clock.sample(sides[side])
            if repeat >= WARM_UP:
                samples[side].append(sample)
    return samples


def columns(samples: Mapping[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Return the columns of a record: medians of each side, and how far its samples spread.

    ``spread`` is the width of the middle half of a side's device times, as a share of their median.
    """

    def medians(attribute: str) -> dict[str, float]:
        return {
            side: round(statistics.median(getattr(one, attribute) for one in values), 4)
            for side, values in samples.items()
        }

    return {
        "median_ms": medians("device_ms"),
        "host_ms": medians("host_ms"),
        "spread": {side: _spread([one.device_ms for one in s]) for side, s in samples.items()},
    }


def _spread(times: list[float]) -> float:
    if len(times) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return round((high - low) / middle, 3)


def launches(work: Work) -> int | None:
    """Return how many kernels, copies and fills a call puts on the device, None on the CPU.

    The work is captured, not run, and the graph's nodes are counted: nothing is profiled.
    """
    if not torch.cuda.is_available():
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()  # what is made at the first call is no part of it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=side):
        result = work()
    count = _nodes_on_the_device(graph.raw_cuda_graph())
    graph.reset()
    del result
    return count


def _nodes_on_the_device(graph: int) -> int:
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t(0)
    handle = ctypes.c_void_p(graph)
    _must(driver.cuGraphGetNodes(handle, None, ctypes.byref(count)), "cuGraphGetNodes")
    nodes = (ctypes.c_void_p * count.value)()
    _must(driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)), "cuGraphGetNodes")
    on_device = 0
    for node in nodes:
        kind = ctypes.c_int(-1)
        _must(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)), "its type")
        on_device += kind.value in (0, 1, 2)  # CU_GRAPH_NODE_TYPE_KERNEL, _MEMCPY, _MEMSET
    return on_device


def _must(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} failed with error {status} of the CUDA driver")

"""Timers of calls on devices: what the device takes, and what the host takes, apart.

Calls are queued behind a kernel that waits, so that the device finds them all queued once it
begins (`fastcomm._measure.device_time`); a sample is several calls, divided by their number, since
an event between two of them would be timed too. What waits for the device, as Gloo does, cannot be
queued: it is timed by the wall's clock, to the end of what it left on the device, and so is
everything on a device without such a clock.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from fastcomm._measure.device_time import queue
from fastcomm._measure.timing import Call, Timer, agree, max_over_ranks


class DeviceTimer(Timer):
    """Times what a call leaves on the current device and stream.

    Args:
        call: need not wait for the device.
        control: as of `Timer`.
        device: of this rank.
    """

    SHORTEST = 1_000_000  # cycles that the device waits: about half a millisecond
    LONGEST = 200_000_000
    SAMPLE_NS = 2e6  # wished for
    MOST_CALLS = 50  # a stream takes about 1,000 launches before the host has to wait

    def __init__(self, call: Call, control: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(call, control)
        self.device = device
        self.clock = "device" if device.type == "cuda" else "wall"
        self._cycles = self.SHORTEST

    def pilot(self) -> float:
        dist.barrier(group=self.control)
        self._wall_ns()  # with everything that a first call does
        (cost,) = max_over_ranks([self._wall_ns()], self.control)
        if self.clock == "device":
            self._sample()
        (self.calls,) = agree([int(self.SAMPLE_NS / max(cost, 1))], self.control)
        self.calls = min(max(self.calls, 1), self.MOST_CALLS)
        start = time.perf_counter_ns()
        self._sample()
        (cost,) = max_over_ranks([time.perf_counter_ns() - start], self.control)
        self.host_ns.clear()
        return cost

    def batch(self, samples: int) -> list[int]:
        while True:
            clock = self.clock
            for _ in range(max(1, self.warm_up // self.calls)):
                self._run()
            self._synchronize()
            times = [self._sample() for _ in range(samples)]
            if self.clock == clock:
                return times
            # All of them by one clock; all ranks have changed it at the same sample.

    def _run(self) -> None:
        for _ in range(self.calls):
            self.call()

    def _synchronize(self) -> None:
        torch.get_device_module(self.device).synchronize(self.device)

    def _wall_ns(self) -> int:
        self._synchronize()
        start = time.perf_counter_ns()
        self._run()
        self._synchronize()
        return time.perf_counter_ns() - start

    def _sample(self) -> int:
        """Time of a call in ns. Whether it was queued in time, and what else to do, all agree."""
        while self.clock == "device":
            found = queue(self._run, self._cycles, before=self.call)
            device_ns, host_ns = (found.device_ms * 1e6, found.host_ms * 1e6) if found else (0, 0)
            late, device, host = max_over_ranks(
                [int(found is None), int(device_ns), int(host_ns)], self.control
            )
            if not late:
                self.host_ns.append(host // self.calls)
                return device // self.calls
            self._cycles *= 2
            if self._cycles > self.LONGEST:
                self.clock = "wall"
                self.host_ns.clear()
        dist.barrier(group=self.control)
        return self._wall_ns() // self.calls


def timer_on(device: torch.device) -> Callable[[Call, dist.ProcessGroup], Timer]:
    """Return what makes the timers for tensors on ``device``."""
    return Timer if device.type == "cpu" else functools.partial(DeviceTimer, device=device)

"""The replicas' speeds, for dividing the batch so that they end together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from fastcomm._devices.slots import served
from fastcomm.nn.parallel._compile import untraced
from fastcomm.nn.parallel.parallel_apply import get_a_var

_RESOLUTION = 1000  # weights are integers


class Speeds:
    """Rows per second of each replica's forward passes: the last weighs as much as all before it.

    On devices the time is taken by events, and read once they have completed. Thread-safe.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._rows_a_second: list[float | None] = [None] * count
        self._pending: list[tuple[int, int, Any, Any]] = []

    def weights(self) -> list[int] | None:
        """Return parts in proportion to the speeds; None while one of them is unknown."""
        with self._lock:
            come = [pending for pending in self._pending if pending[3].query()]
            self._pending = [pending for pending in self._pending if pending not in come]
            for replica, rows, begin, end in come:
                self._note(replica, rows, begin.elapsed_time(end) / 1e3)
            known = [speed for speed in self._rows_a_second if speed is not None]
            if len(known) < len(self._rows_a_second):
                return None
            fastest = max(known)
            return [max(1, round(_RESOLUTION * speed / fastest)) for speed in known]

    def timed(self, replica: int, rows: int, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``work``, timed."""

        @untraced
        def run(*arguments: Any, **options: Any) -> Any:
            tensor = get_a_var((arguments, options))
            stream = None
            if tensor is not None and tensor.device.type == served():
                device = tensor.device
                stream = torch.accelerator.current_stream(device)
                begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
                begin.record(stream)
            start = time.perf_counter()
            result = work(*arguments, **options)
            seconds = time.perf_counter() - start
            with self._lock:
                if stream is not None:
                    end.record(stream)
                    self._pending.append((replica, rows, begin, end))
                else:
                    self._note(replica, rows, seconds)
            return result

        return run

    def _note(self, replica: int, rows: int, seconds: float) -> None:
        speed = rows / max(seconds, 1e-9)
        before = self._rows_a_second[replica]
        self._rows_a_second[replica] = speed if before is None else (before + speed) / 2

    def __getstate__(self) -> dict[str, Any]:
        return {"count": len(self._rows_a_second)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["count"])  # type: ignore[misc]

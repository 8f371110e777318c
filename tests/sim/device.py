"""``torch.sim``: what torch expects of a device type's module. Not for use before load()."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch

native: Any = None
Place: TypeAlias = int | str | torch.device | None


def _index(place: Place) -> int:
    if place is None:
        return current_device()
    if isinstance(place, int):
        return place
    index = torch.device(place).index
    return current_device() if index is None else index


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    pass


def _lazy_init() -> None:
    pass


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    count: int = native.device_count()
    return count


def current_device() -> int:
    index: int = native.current_device()
    return index


def set_device(place: Place) -> None:
    native.set_device(_index(place))


@contextmanager
def device(place: Place) -> Iterator[None]:
    before = current_device()
    set_device(place)
    try:
        yield
    finally:
        set_device(before)


def synchronize(place: Place = None) -> None:
    native.synchronize(_index(place))


def memory_allocated(place: Place = None) -> int:
    """Return how many bytes torch has allocated now."""
    count: int = native.memory_allocated(_index(place))
    return count


def max_memory_allocated(place: Place = None) -> int:
    """Return how many bytes torch had at most since reset_peak_memory_stats()."""
    count: int = native.max_memory_allocated(_index(place))
    return count


def reset_peak_memory_stats(place: Place = None) -> None:
    native.reset_peak_memory_stats(_index(place))


def empty_cache() -> None:
    pass


def Stream(device: Place = None, priority: int = 0) -> torch.Stream:
    return torch.Stream(torch.device("sim", _index(device)), priority=priority)


def Event(*_: Any, **__: Any) -> torch.Event:
    return torch.Event("sim")


def current_stream(place: Place = None) -> torch.Stream:
    return torch.accelerator.current_stream(torch.device("sim", _index(place)))


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


@contextmanager
def stream(new: torch.Stream | None) -> Iterator[None]:
    if new is None:
        yield
        return
    with new:
        yield


@contextmanager
def graph(stream: torch.Stream) -> Iterator[Any]:
    """Capture what is given to a stream, and to those joined with it, into a graph.

    The graph has ``replay()``, which runs in the current stream.
    """
    with stream:
        captured = native.CapturedGraph(stream.device_index, stream.stream_id)
        try:
            yield captured
        except BaseException:
            with suppress(RuntimeError):
                captured.end()
            raise
        captured.end()


def sleep(microseconds: int) -> None:
    """Keep the current stream idle for that long."""
    here = current_stream()
    native.sleep(here.device_index, here.stream_id, microseconds)


# Operators draw from the CPU's generator.
def manual_seed(seed: int) -> None:
    pass


def manual_seed_all(seed: int) -> None:
    pass


def get_rng_state(place: Place = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, place: Place = None) -> None:
    torch.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]

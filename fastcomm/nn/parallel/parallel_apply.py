"""Several modules at work at the same time, each on its device, in a thread of its own."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from fastcomm._devices.slots import CPU, Device, accelerator, index_of, slot
from fastcomm.nn.parallel import _first_calls
from fastcomm.nn.parallel._compile import traced, untraced
from fastcomm.nn.parallel._random import begin_pass, drawing

__all__ = ["get_a_var", "parallel_apply"]

_first_calls.make()  # here, where the import lock lets one thread through


def get_a_var(obj: Any) -> torch.Tensor | None:
    """Return the first tensor in nested tuples, lists and dicts; None without one."""
    if isinstance(obj, torch.Tensor):
        return obj
    parts = obj.items() if isinstance(obj, dict) else obj if isinstance(obj, list | tuple) else ()
    return next((found for part in parts if (found := get_a_var(part)) is not None), None)


@dataclass
class _ThreadContext:
    """The caller's thread-local settings of torch, for the threads of the replicas."""

    grad: bool = field(default_factory=torch.is_grad_enabled)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    cache: bool = field(default_factory=torch.is_autocast_cache_enabled)
    autocast: dict[str, tuple[bool, torch.dtype]] = field(
        default_factory=lambda: {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", accelerator() or "cuda")
        }
    )

    @contextlib.contextmanager
    def enter(self, place: torch.device, streams: dict[torch.device, Any]) -> Iterator[None]:
        """Enter the settings and the streams, that of ``place`` last.

        Replicas on several devices may meet, and one of them then works for all: see
        `fastcomm.nn.parallel._sync_batchnorm`.
        """
        torch.get_num_threads()  # sets OpenMP's number for this thread, which matrix products ask
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, (enabled, dtype) in self.autocast.items():
                if enabled:
                    stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.cache))
            for device in [*(other for other in streams if other != place), place]:
                if device != CPU:
                    stack.enter_context(torch.accelerator.device_index(device.index))
                    stack.enter_context(streams[device])
            yield


@untraced
def parallel_apply(
    modules: Sequence[Any],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Device | None] | None = None,
) -> list[Any]:
    """Call ``modules[i](*inputs[i], **kwargs_tup[i])`` for all ``i`` at the same time.

    Args:
        modules: modules, or anything that can be called.
        inputs: each module's positional arguments as a list or tuple, or its only argument.
        kwargs_tup: each module's keyword arguments.
        devices: each module's device; that of the first tensor among its inputs by default.

    The threads have the caller's grad mode, inference mode, autocast settings, context variables,
    and current streams on these devices. On the CPU the first one draws random numbers from the
    caller's generator, and each other one from a stream of its own, which depends on the state of
    that generator at the call: the same seed gives the same bits.

    Returns:
        What the modules returned.

    Raises:
        AssertionError: sequences of different lengths.
        Exception: what the first module that failed raised, with its number and device and its own
            traceback in the text. The other modules have ended by then.
    """
    count = len(modules)
    for what, given in (("inputs", inputs), ("kwargs", kwargs_tup), ("devices", devices)):
        if given is not None and len(given) != count:
            raise AssertionError(
                f"The number of modules {count} is not equal to the number of {what} {len(given)}"
            )
    modules = [traced(module) for module in modules]
    kwargs_tup = [{}] * count if kwargs_tup is None else kwargs_tup
    given = [None] * count if devices is None else devices
    places = [_place(*each) for each in zip(given, inputs, kwargs_tup, strict=True)]
    used = [place for place in dict.fromkeys(places) if place != CPU]
    streams = {place: torch.accelerator.current_stream(place) for place in used}
    settings = _ThreadContext()
    results: list[Any] = [None] * count

    numbers = begin_pass() if count > 1 else None

    def work(i: int) -> None:
        where = f"in replica {i} on device {'cpu' if places[i] == CPU else index_of(places[i])}"
        try:
            with drawing(numbers, i), settings.enter(places[i], streams):
                positions = inputs[i] if isinstance(inputs[i], list | tuple) else (inputs[i],)
                results[i] = modules[i](*positions, **kwargs_tup[i])
        except Exception:
            results[i] = ExceptionWrapper(where=where)
        except BaseException as error:
            results[i] = _Ended(error)

    if numbers is None:
        work(0)
    else:
        try:
            _in_threads(work, modules)
        finally:
            numbers.settle()
    for result in results:
        if isinstance(result, ExceptionWrapper | _Ended):
            _reraise(result)
    return results


class _Ended:
    """A replica ended by something that is not an error: SystemExit, KeyboardInterrupt."""

    def __init__(self, by: BaseException) -> None:
        self._by: BaseException | None = by

    def reraise(self) -> None:
        error, self._by = self._by, None
        assert error is not None
        raise error


def _reraise(failed: ExceptionWrapper | _Ended) -> None:
    """Raise a replica's exception, which no frame of its traceback holds.

    Such a frame would keep the replicas, and what they computed, until the garbage is collected.
    """
    try:
        failed.reraise()
    except BaseException as error:
        raise error.with_traceback(_of_replica(error))  # noqa: B904 (no other one)


def _of_replica(error: BaseException) -> TracebackType | None:
    """Return the traceback without its first two frames: `_reraise` and ``reraise``."""
    begin = error.__traceback__
    assert begin is not None and begin.tb_next is not None
    return begin.tb_next.tb_next


def _in_threads(work: Callable[[int], None], modules: Sequence[Any]) -> None:
    """Call ``work`` for each module in a thread, and wait for all.

    A module that will not be called is told so by its method ``cancel``, if it has one.
    """
    started: list[threading.Thread] = []
    try:
        for i in range(len(modules)):
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(work, i))
            thread.start()  # RuntimeError where no thread is available
            started.append(thread)
    finally:
        for module in modules[len(started) :]:
            if hasattr(module, "cancel"):
                module.cancel()
        for thread in started:
            thread.join()


def _place(device: Device | None, inputs: Any, kwargs: dict[str, Any]) -> torch.device:
    if device is not None:
        return slot(device)
    tensor = get_a_var((inputs, kwargs))
    return slot(None) if tensor is None else tensor.device

"""A rank of a measurement, and the frame in which its process runs its task."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Pipe(Protocol):
    """The receiver of a rank's reports."""

    def send(self, report: Any, /) -> None: ...


@dataclass(frozen=True)
class Rank:
    """A rank's knowledge of itself.  ``report`` may be called from one thread only."""

    rank: int
    size: int
    pipe: Pipe

    def report(self, message: object) -> None:
        """Send ``message`` (picklable) to the parent's ``on_message`` while the rank goes on."""
        self.pipe.send(("message", time.monotonic_ns(), message))


def run_function(
    function: Callable[..., Any], rank: Rank, settings: dict[str, str], args: tuple[Any, ...]
) -> None:
    """Run what a rank is for, and report what it returns or raises."""
    os.environ.update(settings)
    torch.set_num_threads(1)
    try:
        report: tuple[str, int, Any] = ("result", time.monotonic_ns(), function(rank, *args))
    except BaseException as error:
        when = time.monotonic_ns()
        pickled = b""
        with contextlib.suppress(Exception):
            pickled = pickle.dumps(error)
        text = "".join(traceback.format_exception(error)).strip()
        report = ("error", when, (pickled, text))
    with contextlib.suppress(BrokenPipeError):
        rank.pipe.send(report)


def begin(
    rank: Rank,
    prepare: Callable[[], None] | None,
    unset: Iterable[str],
    settings: Mapping[str, str],
    on_devices: bool,
) -> torch.device:
    """Set the environment, form the default group, of Gloo, and return this rank's device.

    ``prepare`` is called before anything native is loaded.
    """
    for name in unset:
        os.environ.pop(name, None)
    os.environ.update(settings)
    if prepare is not None:
        prepare()
    device = torch.device("cpu")
    if on_devices:
        from fastcomm._devices.slots import served

        module = torch.get_device_module(served())
        device = torch.device(served(), rank.rank % module.device_count())
        module.set_device(device)
    # Names that torch has replaced: old versions know no others.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # What warnings would say is in the report.
    logging.getLogger("fastcomm").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    return device

"""What a rank knows about itself, and how its process runs what it is for."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Pipe(Protocol):
    """Where a rank's reports go."""

    def send(self, report: Any, /) -> None: ...


@dataclass(frozen=True)
class Rank:
    """What a rank knows about itself.  ``report`` may be called from one thread only."""

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

"""An exception as data, so that a rank can hand it to the test that started it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ATTRIBUTES = ("rank", "world_size", "peer", "operation", "sequence")


@dataclass(frozen=True)
class Caught:
    """What was raised, and when (seconds of the machine-wide monotonic clock)."""

    kind: str
    bases: tuple[str, ...]
    text: str
    seconds: float
    at: float
    rank: int | None = None
    world_size: int | None = None
    peer: int | None = None
    operation: str | None = None
    sequence: int | None = None


def interrupted_in(function: Callable[[], Any]) -> Any:
    """Call ``function``, and send this process SIGINT once it has slept in there for 0.3 s.

    To be called by `catch`, on the main thread. On a busy machine the call may begin late.
    """
    status = Path(f"/proc/self/task/{threading.main_thread().native_id}/stat")

    def interrupt() -> None:
        asleep = 0
        while asleep < 10:
            time.sleep(0.03)
            asleep += status.read_text().rsplit(") ", 1)[1].startswith("S")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    return function()


def catch(function: Callable[..., Any], *arguments: Any, **options: Any) -> Caught:
    """Call ``function``, which must raise, and return what it raised.

    Raises:
        AssertionError: it returned.
    """
    start = time.monotonic()
    try:
        value = function(*arguments, **options)
    except BaseException as error:
        now = time.monotonic()
        attributes = {name: getattr(error, name, None) for name in _ATTRIBUTES}
        bases = tuple(base.__name__ for base in type(error).__mro__)
        kind = type(error).__name__
        return Caught(kind, bases, str(error), now - start, now, **attributes)
    raise AssertionError(f"{function} raised nothing and returned {value!r}")

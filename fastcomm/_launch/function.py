"""A rank's side of `fastcomm.launch`: group, function and answer."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import faulthandler
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fastcomm._launch import pickles

VALUE, ERROR = "value", "error"


def answer_with(
    task: memoryview, pipe: int, backend: str | None, timeout_s: float | None
) -> NoReturn:
    """Run a pickled function in a group, send its value or error, and end the process.

    Args:
        task: of `fastcomm._launch.pickles.dumps_function`.
        pipe: where the answer goes: its kind, nanoseconds of the monotonic clock, and the pickled
            value, or the text of an error and whether it tells of another rank's failure.
        backend: of the default group; None for no group.
        timeout_s: of the group, in seconds; None for torch's default.
    """
    connection = Connection(pipe, readable=False)

    def send(*answer: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            connection.send_bytes(pickle.dumps(answer))

    with contextlib.suppress(OSError, ValueError, AttributeError):
        faulthandler.enable()
    _run(task, send, backend, timeout_s)
    end_process()


def _run(
    task: memoryview, send: Callable[..., None], backend: str | None, timeout_s: float | None
) -> None:
    try:
        import torch.distributed as dist

        function, args = pickles.load_function(task)
        options = {} if timeout_s is None else {"timeout": datetime.timedelta(seconds=timeout_s)}
        if backend is not None:
            dist.init_process_group(backend, **options)
        value = function(*args)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        send(ERROR, time.monotonic_ns(), _text(error), _is_of_another(error))
        with contextlib.suppress(Exception):  # within the handler: peers are told of the error
            if dist.is_initialized():
                dist.destroy_process_group()
        return
    try:
        pickled = pickles.dumps(value)
    except Exception as error:
        text = (
            f"its value, of type {type(value).__qualname__}, cannot be pickled: "
            f"{type(error).__name__}: {error}"
        )
        send(ERROR, time.monotonic_ns(), text, False)
    else:
        send(VALUE, time.monotonic_ns(), pickled, False)


def _text(error: BaseException) -> str:
    """Return a traceback, without the frame of this module that called the function."""
    if isinstance(error, pickles.PickleError):
        return str(error)
    tail = error.__traceback__
    if tail is not None and tail.tb_next is not None:
        tail = tail.tb_next
    return "".join(traceback.format_exception(type(error), error, tail)).strip()


def _is_of_another(error: BaseException) -> bool:
    from fastcomm import errors

    others = (errors.PeerLostError, errors.PeerLeftError, errors.GroupPoisonedError)
    return isinstance(error, (*others, errors.CollectiveTimeoutError))


def end_process() -> NoReturn:
    """End this process as the interpreter does, except for the interpreter itself.

    torch does not let go of a Gloo group that DDP has used. A thread of it that asks for the GIL
    while the interpreter ends aborts the process.
    """
    # Joins threads, and before tells those of concurrent.futures' executors to end.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)

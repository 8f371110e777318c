"""Where a worker's training loop comes from: the caller's model, or a script."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fastcomm._advise.told import Spec
from fastcomm._advise.work import Work
from fastcomm._launch.script import run_script


class ScriptError(RuntimeError):
    """A script ended by itself with an error; the message has its last lines."""


@dataclass(frozen=True)
class OfModel:
    """A loop over one batch.

    Attributes:
        saved: a `Work`, by ``torch.save``, which is loaded to the current device.
    """

    saved: bytes

    def __call__(self, spec: Spec) -> None:
        work: Work = torch.load(
            io.BytesIO(self.saved), map_location=_to_current, weights_only=False
        )
        if spec.divisor > 1:
            work = work.part(spec.divisor)
        optimizer = work.optimizer_or_sgd()
        work.model.train()
        while True:
            optimizer.zero_grad()
            work.loss(work.model).backward()
            optimizer.step()


def _to_current(storage: Any, location: str) -> Any:
    if location == "cpu":
        return storage
    device = torch.accelerator.current_device_index()
    return torch.serialization.default_restore_location(
        storage, f"{location.partition(':')[0]}:{device}"
    )


@dataclass(frozen=True)
class OfScript:
    """A script that knows nothing of this. What it prints is not shown.

    Attributes:
        words: its path, or its name if it is a module, and its arguments.
        as_module: as by ``python -m``.
    """

    words: tuple[str, ...]
    as_module: bool

    def __call__(self, spec: Spec) -> None:
        with silent() as last, _divided_batches(spec.divisor):
            try:
                run_script(self.words, self.as_module)
            except SystemExit as end:
                if end.code not in (None, 0):
                    status = f"status {end.code}" if isinstance(end.code, int) else str(end.code)
                    raise ScriptError(f"{last()}\nIt ended with {status}.".strip()) from None


@contextlib.contextmanager
def silent() -> Iterator[Callable[[], str]]:
    """Print nothing meanwhile, and yield a function that returns the last lines of errors."""
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(open(os.devnull, "w"))
        kept = stack.enter_context(os.fdopen(os.memfd_create("stderr"), "w+", errors="replace"))
        for number, file in ((1, nothing), (2, kept)):  # of what is no Python
            before = os.dup(number)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, number)
            os.dup2(file.fileno(), number)
        stack.enter_context(contextlib.redirect_stdout(nothing))
        stack.enter_context(contextlib.redirect_stderr(kept))

        def last() -> str:
            kept.seek(0)
            return kept.read().strip()[-2000:]

        yield last


@contextlib.contextmanager
def _divided_batches(divisor: int) -> Iterator[None]:
    """Let data loaders that are made meanwhile give batches of so many times fewer rows."""
    loader: Any = torch.utils.data.DataLoader
    make = loader.__init__

    @functools.wraps(make)
    def make_divided(
        self: Any, dataset: Any, batch_size: int | None = 1, *arguments: Any, **options: Any
    ) -> None:
        if batch_size is not None:
            batch_size = max(1, batch_size // divisor)
        make(self, dataset, batch_size, *arguments, **options)

    if divisor > 1:
        loader.__init__ = make_divided
    try:
        yield
    finally:
        loader.__init__ = make

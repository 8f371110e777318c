"""Random numbers of replicas on the CPU: each thread draws from a stream of its own.

torch has one generator for all threads of the CPU. What operators draw is seen to by the native
library (csrc/ops/random_streams.h); here are the functions of ``torch.random``, such as
``get_rng_state``, ``manual_seed`` and ``fork_rng``, with which checkpoints save and restore it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fastcomm import _native

_library = _native.load()


class _OfThread:
    """Stands for the generator of the thread that uses it, in ``torch.random``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_library.random_generator(), name)


class Pass:
    """One pass through replicas.

    The first replica draws from the generator of the thread that makes the pass. Each other one
    has a stream derived from that generator's state at the beginning. If any of them has drawn,
    the generator has another state at the end; else it is as it was.
    """

    def __init__(self) -> None:
        if not isinstance(torch.random.default_generator, _OfThread):
            torch.random.default_generator = _OfThread()
        self._native = _library.RandomPass()

    @contextlib.contextmanager
    def replica(self, number: int) -> Iterator[None]:
        """Let this thread draw as that replica."""
        self._native.enter(number)
        try:
            yield
        finally:
            self._native.leave()

    def settle(self) -> None:
        """End the pass, after all replicas."""
        self._native.settle()

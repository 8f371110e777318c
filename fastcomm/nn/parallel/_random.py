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


class _OfThread:
    """Stands for the generator of the thread that uses it, in ``torch.random``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_native.load().random_generator(), name)


def begin_pass() -> Any:
    """Begin a pass through replicas; returns the native library's ``RandomPass``.

    In `drawing` a thread draws as one of its replicas: the first from the generator of the thread
    that began the pass, each other one from a stream derived from that generator's state.
    ``settle()`` ends the pass, after all replicas. If any has drawn, the generator has another
    state then; else it is as it was.
    """
    if not isinstance(torch.random.default_generator, _OfThread):
        _let_higher_order_operators_pass()
        torch.random.default_generator = _OfThread()
    return _native.load().RandomPass()


def _let_higher_order_operators_pass() -> None:
    """Have them fall through for the keys of replicas' threads, now and those that come later.

    They are operators of Python, such as ``torch.cond`` and flex attention, which the native
    library's registration for all operators does not reach.
    """
    for name in ("TESTING_ONLY_GenericMode", "CustomRNGKeyId"):
        key = torch._C._dispatch_key_parse(name)
        # A torch newer than any that is known may have other names: what needs no such operator
        # runs.
        getattr(torch._ops, "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", []).append(key)
        for operator in list(getattr(torch._ops, "_higher_order_ops", {}).values()):
            operator.fallthrough(key)


@contextlib.contextmanager
def drawing(numbers: Any, part: int) -> Iterator[None]:
    """Draw as a replica of a pass in this thread; without a pass, as before."""
    if numbers is None:
        yield
        return
    numbers.enter(part)
    try:
        yield
    finally:
        numbers.leave()

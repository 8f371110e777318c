"""Our primitives in place of torch's, for code that nobody wants to edit.

    with fastcomm.use():
        output = torch.nn.DataParallel(model)(inputs)

While it is in effect, ``torch.nn.parallel`` and ``torch.cuda.comm`` have fastcomm's functions, in
the whole process: backward passes and replicas run in threads of their own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from types import ModuleType, TracebackType
from typing import Any

import torch.cuda.comm
import torch.nn.parallel

from fastcomm import comm
from fastcomm.nn import parallel
from fastcomm.nn.parallel import _functions, scatter_gather

__all__ = ["DataParallel", "use"]

_THEIRS = torch.nn.DataParallel


class _AsTheirs(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _THEIRS)


class DataParallel(parallel.DataParallel[Any], metaclass=_AsTheirs):
    """What the name ``torch.nn.DataParallel`` means while `use` is in effect.

    It is `DataParallel`, of which any ``torch.nn.DataParallel`` counts as an instance: a model may
    have been wrapped before.
    """

    def __init__(self, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(module, device_ids, *args, **kwargs)
        if device_ids is None and not self.device_ids:
            _say_where_it_runs()


@functools.cache
def _say_where_it_runs() -> None:
    warnings.warn(
        "torch finds no accelerator here, so DataParallel runs its module as it is. For replicas "
        'on the CPU say where: DataParallel(module, device_ids=["cpu", "cpu"])',
        RuntimeWarning,
        stacklevel=3,
    )


_COMM = [name for name in comm.__all__ if hasattr(torch.nn.parallel.comm, name)]
# torch.nn.parallel.replicate and others are functions that hide the modules of their names.
_PLACES: dict[str, list[tuple[str, Any]]] = {
    "torch.nn.parallel.comm": [(name, getattr(comm, name)) for name in _COMM],
    "torch.cuda.comm": [(name, getattr(comm, name)) for name in _COMM],
    "torch.nn.parallel._functions": [(n, getattr(_functions, n)) for n in _functions.__all__],
    "torch.nn.parallel.scatter_gather": [
        *((name, getattr(scatter_gather, name)) for name in scatter_gather.__all__),
        *((name, getattr(_functions, name)) for name in ("Gather", "Scatter")),
    ],
    "torch.nn.parallel.replicate": [("replicate", parallel.replicate)],
    "torch.nn.parallel.parallel_apply": [("parallel_apply", parallel.parallel_apply)],
    "torch.nn.parallel.data_parallel": [
        ("replicate", parallel.replicate),
        ("parallel_apply", parallel.parallel_apply),
        ("scatter_kwargs", scatter_gather.scatter_kwargs),
        ("gather", parallel.gather),
        ("data_parallel", parallel.data_parallel),
        ("DataParallel", DataParallel),
    ],
    "torch.nn": [("DataParallel", DataParallel)],
    "torch.nn.parallel": [
        ("DataParallel", DataParallel),
        ("scatter", parallel.scatter),
        ("gather", parallel.gather),
        ("replicate", parallel.replicate),
        ("parallel_apply", parallel.parallel_apply),
        ("data_parallel", parallel.data_parallel),
    ],
}

_lock = threading.Lock()
_depth = 0
_replaced: list[tuple[ModuleType, str, Any, Any]] = []  # where, name, torch's, ours


class use(contextlib.ContextDecorator):
    """Put fastcomm's primitives under ``torch.nn.parallel`` and ``torch.cuda.comm``.

    Meanwhile ``torch.nn.DataParallel`` is `fastcomm.nn.parallel.DataParallel`, which takes CPU
    slots too.

    As a context manager it is in effect from entry to exit; as a decorator (``@fastcomm.use()``),
    while the function runs. Uses may nest and overlap, in any threads: when the last one ends, what
    was there before comes back, except where somebody else has replaced it meanwhile.
    """

    def __enter__(self) -> use:
        global _depth
        with _lock:
            _depth += 1
            if _depth > 1:
                return self
            for where, names in _PLACES.items():
                module = sys.modules[where]
                for name, ours in names:
                    if hasattr(module, name):
                        _replaced.append((module, name, getattr(module, name), ours))
                        setattr(module, name, ours)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _depth
        with _lock:
            _depth -= 1
            if _depth > 0:
                return
            for module, name, theirs, ours in reversed(_replaced):
                if getattr(module, name) is ours:
                    setattr(module, name, theirs)
            _replaced.clear()

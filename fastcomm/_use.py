"""Our primitives in place of torch's, for code that nobody wants to edit.

    with fastcomm.use():
        output = torch.nn.DataParallel(model)(inputs)

While it is in effect, ``torch.nn.parallel`` and ``torch.cuda.comm`` have fastcomm's functions, in
the whole process: backward passes and replicas run in threads of their own.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import sys
import threading
from types import ModuleType, TracebackType
from typing import Any

import torch.cuda.comm
import torch.nn.parallel

from fastcomm import comm
from fastcomm.nn import parallel
from fastcomm.nn.parallel import _functions, scatter_gather
from fastcomm.nn.parallel.data_parallel import OPTIONS

__all__ = ["DataParallel", "use"]

_THEIRS = torch.nn.DataParallel


class _AsTheirs(type):
    def __instancecheck__(cls, instance: object) -> bool:
        if cls is DataParallel:
            return isinstance(instance, _THEIRS)
        return super().__instancecheck__(instance)  # a class of the user's, derived from it

    def __subclasscheck__(cls, other: type) -> bool:
        return (
            issubclass(other, _THEIRS) if cls is DataParallel else super().__subclasscheck__(other)
        )


class DataParallel(parallel.DataParallel[Any], metaclass=_AsTheirs):
    """The meaning of ``torch.nn.DataParallel`` while `use` is in effect.

    It is `DataParallel`, of which any ``torch.nn.DataParallel`` counts as an instance: a model may
    have been wrapped before.

    It is pickled as torch's own, which plain torch loads without fastcomm, unless it has options
    that torch's own has not. CPU slots are kept, but without fastcomm its module runs as it is.
    """

    def __copy__(self) -> DataParallel:
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        other: DataParallel
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = {name: value for name, value in state.items() if name != "_slots"}
        super().__setstate__({**known, "device_ids": state.get("_slots", state["device_ids"])})

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is not DataParallel:
            return super().__reduce_ex__(protocol)
        state = self.__getstate__()
        if self._speeds is not None or any(state[k] != value for k, value in OPTIONS.items()):
            return _RECONSTRUCT, (parallel.DataParallel, object, None), state
        for name in (*OPTIONS, "_frames", "_speeds", "_cache"):
            state.pop(name, None)
        if "cpu" in self.device_ids:
            state.update(device_ids=[], _slots=self.device_ids)
        return _as_theirs(state)


# Where pickle looks for the class, and finds it while `use` is in effect.
DataParallel.__module__ = _THEIRS.__module__
_RECONSTRUCT: Any = copyreg._reconstructor  # type: ignore[attr-defined]


def _as_theirs(state: dict[str, Any]) -> Any:
    """Return a pickle of what torch's name of the class means where it is loaded."""
    now = vars(sys.modules[_THEIRS.__module__])["DataParallel"]
    return _RECONSTRUCT, (now, object, None), state


def _reduce_theirs(instance: Any) -> Any:
    return _as_theirs(instance.__dict__.copy())


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
            # The name in a pickle of theirs means ours meanwhile.
            copyreg.pickle(_THEIRS, _reduce_theirs)
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
            copyreg.dispatch_table.pop(_THEIRS, None)
            for module, name, theirs, ours in reversed(_replaced):
                if getattr(module, name) is ours:
                    setattr(module, name, theirs)
            _replaced.clear()

"""Functions and values on their way between processes, by cloudpickle where it is installed."""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

ADVICE = "pip install cloudpickle"


class PickleError(RuntimeError):
    """Something cannot travel between processes; the message says what to do."""


def dumps(what: Any) -> bytes:
    """Return a pickle, with functions and classes of ``__main__`` in it where cloudpickle is there.

    Raises:
        Exception: whatever pickling raises.
    """
    cloud = _cloudpickle()
    data: bytes = (cloud or pickle).dumps(what, protocol=pickle.HIGHEST_PROTOCOL)
    return data


def save(what: Any) -> bytes:
    """Return what ``torch.load`` reads, which may move tensors; pickled as by `dumps`.

    Raises:
        Exception: whatever pickling raises.
    """
    import torch

    file = io.BytesIO()
    torch.save(what, file, pickle_module=_cloudpickle() or pickle)
    return file.getvalue()


def dumps_function(function: Any, args: tuple[Any, ...]) -> bytes:
    """Return a pickle of a function and its arguments, which `load_function` reads.

    Raises:
        PickleError: it cannot be made, or nobody could read it.
    """
    name = getattr(function, "__qualname__", repr(function))
    if _cloudpickle() is None and getattr(function, "__module__", None) == "__main__":
        raise PickleError(
            f"{name} is defined in a notebook or in the script itself, where ranks do not find "
            f"it: {ADVICE}, or move it to a module"
        )
    try:
        return dumps((function, args))
    except Exception as error:
        advice = f"; {ADVICE}" if _cloudpickle() is None else ""
        raise PickleError(
            f"{name} or its arguments cannot be pickled for the ranks: "
            f"{type(error).__name__}: {error}{advice}"
        ) from error


def load_function(data: memoryview) -> tuple[Any, tuple[Any, ...]]:
    """Return the function and arguments of `dumps_function`.

    Raises:
        PickleError: something in it is not to be found here.
    """
    try:
        function, args = pickle.loads(data)
    except Exception as error:
        missing = "__main__" in str(error) or "cloudpickle" in str(error)
        advice = f"; {ADVICE}" if missing and _cloudpickle() is None else ""
        raise PickleError(
            f"the function or its arguments cannot be unpickled in a rank: "
            f"{type(error).__name__}: {error}{advice}"
        ) from error
    return function, args


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    # Functions that name torch.ops take what stands for it in sys.modules along.
    import torch

    copyreg.pickle(type(torch.ops), _reduce_ops)
    return cloudpickle


def _reduce_ops(_: Any) -> Any:
    import torch

    return getattr, (torch, "ops")

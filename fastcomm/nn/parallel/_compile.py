"""Replicas as torch.compile sees them: their own work, not its arrangement.

Threads, locks and what lasts from one pass to the next cannot be traced. Code that arranges
replicas is `untraced`: a graph break, run as it is. Replicas are `traced`: compiled one by one,
each in its thread, as the surrounding torch.compile says. Replicas of modules that are compiled
themselves are compiled, too: see `rebind`.

torch has no public way to hand what torch.compile has set to another thread. It does so itself by
``set_eval_frame``, which, unlike ``torch._dynamo``, is available without a second of import.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch.nn import Module

__all__ = ["Frames", "is_wrapper", "rebind", "traced", "untraced"]

F = TypeVar("F", bound=Callable[..., Any])

# What compiles the frames of the thread that called untraced code; None if nothing does.
_compiler: ContextVar[Any] = ContextVar("compiler", default=None)
_numbers = itertools.count()
_DEFAULT = eval_frame._FrameAction.DEFAULT


def untraced(function: F) -> F:
    """Decorate what torch.compile is to leave as it is, except for what is `traced` in it."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        compiler = eval_frame.set_eval_frame(None)
        if compiler is None:
            return function(*arguments, **options)
        token = _compiler.set(compiler)
        try:
            return function(*arguments, **options)
        finally:
            _compiler.reset(token)
            eval_frame.set_eval_frame(compiler)

    strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, _DEFAULT)
    marked: Any = call
    eval_frame.set_code_exec_strategy(marked.__code__, strategy)
    marked._torchdynamo_disable = True  # where it is called from a frame that is traced
    marked._torchdynamo_disable_msg = "fastcomm arranges replicas, and compiles each by itself"
    marked._fastcomm_untraced = True
    return marked  # type: ignore[no-any-return]


class Frame:
    """A frame from which replicas are traced, and what torch.compile keeps for it.

    torch.compile keeps a few versions, and then gives up. So every model and every device has
    frames of its own, and replicas that come at the same time do not each add a version.
    """

    def __init__(self) -> None:
        if torch.cuda._is_compiled() and not torch.cuda.is_available():
            # Tracing sees to this too, but in torch 2.11 what it sets ends with its thread.
            torch._C._ensureCUDADeviceGuardSet()
        code = _call.__code__.replace(co_name=f"replica_{next(_numbers)}")
        self.function = FunctionType(code, globals())
        # For each thread: how many versions there were before it looked for one.
        self._looked = threading.local()

    def in_turn(self, compiler: Any) -> Any:
        """Return a compiler that compiles nothing twice for threads that come at the same time."""
        if not callable(compiler):  # False: nothing new is to be compiled
            return compiler

        def compile_in_turn(frame: Any, *rest: Any) -> Any:
            code = frame.f_code
            # For a frame in the replica's work, a version made between the look-up and here goes
            # unseen: then the frame is compiled twice.
            seen = self._looked.versions if code is self.function.__code__ else _versions(code)
            with _turn:
                if _versions(code) == seen:
                    return compiler(frame, *rest)
            if code is self.function.__code__:
                raise _MadeMeanwhile
            return _as_it_is_this_once()  # it may be anywhere in the replica's work

        made: Any = compile_in_turn
        made._torchdynamo_orig_backend = compiler  # by which torch tells versions apart
        return made

    def call(self, compiled: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        """Call the frame's function, as ``compiled`` does."""
        while True:
            self._looked.versions = _versions(self.function.__code__)
            with contextlib.suppress(_MadeMeanwhile):
                return compiled(*arguments, **options)


class _MadeMeanwhile(Exception):
    """Another thread has compiled the frame since this one looked for a version of it."""


_turn = threading.RLock()


def _versions(code: CodeType) -> int:
    return len(eval_frame._debug_get_cache_entry_list(code))


def _as_it_is_this_once() -> Any:
    from torch._dynamo.types import ConvertFrameReturn

    strategy = eval_frame._FrameExecStrategy(_DEFAULT, _DEFAULT)
    return ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=False)


class Traced:
    """Work that is compiled like the frames of the thread that called untraced code."""

    _fastcomm_untraced = True

    def __init__(self, frame: Frame, work: Callable[..., Any]) -> None:
        self._frame, self._work = frame, work

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        compiler = self._frame.in_turn(_compiler.get())
        compiled = functools.partial(_compiled, compiler, self._frame.function)
        token = _compiler.set(None)
        try:
            return self._frame.call(compiled, self._work, *arguments, **options)
        finally:
            _compiler.reset(token)


def _compiled(compiler: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
    before = eval_frame.set_eval_frame(compiler)
    try:
        return function(*arguments, **options)
    finally:
        eval_frame.set_eval_frame(before)


def traced(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``work`` compiled if the caller is; ``work`` itself if it sees to that."""
    if _compiler.get() is None or hasattr(work, "_fastcomm_untraced"):
        return work
    return Traced(_common(), work)


class Frames:
    """The frames of one model: for each device, and for the first replica.

    The first replica shares the module's tensors, so it is compiled differently from those with
    their own.
    """

    def __init__(self, make: Callable[[], Any] = Frame) -> None:
        self._make = make
        self._frames: dict[tuple[Hashable, bool], Any] = {}

    def of(self, device: Hashable, first: bool) -> Any:
        """Return the frame for a replica."""
        if (device, first) not in self._frames:
            self._frames[device, first] = self._make()
        return self._frames[device, first]

    def traced(
        self, works: Sequence[Callable[..., Any]], devices: Sequence[Hashable]
    ) -> list[Callable[..., Any]]:
        """Return what each device is to do, compiled if the caller is."""
        if _compiler.get() is None:
            return list(works)
        places = zip(works, devices, strict=False)
        return [Traced(self.of(device, i == 0), work) for i, (work, device) in enumerate(places)]

    def __reduce__(self) -> Any:
        return Frames, ()


def _call(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


@functools.cache
def _common() -> Frame:
    return Frame()


def is_wrapper(module: Module) -> bool:
    """Tell whether a module is what torch.compile returned for another."""
    return type(module).__name__ == "OptimizedModule"


def rebind(
    module: Any, replica: Any, place: dict[int, Module], device: Hashable, first: bool
) -> None:
    """Give a replica its module's compiled methods, bound to the replica.

    Args:
        module: the module.
        replica: a replica of the module, with its attributes.
        place: all replicas on that device, by the identity of their modules.
        device: of the replica.
        first: whether the replica is the first of all.
    """
    if is_wrapper(module):
        method = _frames_of(module, module.dynamo_ctx).of(device, first)
        replica.__dict__["forward"] = _Bound(method, Module.__call__, place[id(module._orig_mod)])
        return
    for name in ("_compiled_call_impl", "forward"):  # Module.compile() sets the first
        compiled = module.__dict__.get(name)
        original = _original(compiled)
        if getattr(original, "__self__", None) is module:
            method = _frames_of(compiled, _context(compiled)).of(device, first)
            replica.__dict__[name] = _Bound(method, original.__func__, replica)


def _original(compiled: Any) -> Any:
    """Return the method that torch.compile was given; None for what it did not return."""
    given = getattr(compiled, "_torchdynamo_orig_callable", None)
    return inspect.unwrap(given, stop=inspect.ismethod) if given else None


class _Bound:
    """A compiled method of a replica, which it holds weakly: it is the replica's attribute."""

    def __init__(self, method: tuple[Frame, Any], function: Any, replica: Module) -> None:
        self._frame, self._compiled = method
        self._function = function
        self._replica = weakref.ref(replica)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        replica = self._replica()
        return self._frame.call(self._compiled, self._function, replica, *arguments, **options)


_known: weakref.WeakKeyDictionary[Any, Frames] = weakref.WeakKeyDictionary()


def _frames_of(compiled: Any, context: Any) -> Frames:
    """Return frames together with their functions, compiled as ``compiled`` is."""
    if compiled not in _known:
        _known[compiled] = Frames(functools.partial(_compiled_frame, context))
    return _known[compiled]


def _compiled_frame(context: Any) -> tuple[Frame, Callable[..., Any]]:
    frame, in_turn = Frame(), object.__new__(type(context))
    in_turn.__dict__.update(context.__dict__, callback=frame.in_turn(context.callback))
    if torch.__version__ < (2, 12) and context.enter_exit_hooks:
        in_turn.enter_exit_hooks = [functools.partial(_settings.enter, context.enter_exit_hooks)]
    return frame, in_turn(frame.function)


class _Settings:
    """Settings that torch 2.11 keeps per process, for as long as any replica needs them.

    Threads that set and restore them on their own would end up with each other's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._undo: list[Callable[[], Any]] = []

    def enter(self, hooks: Sequence[Callable[[], Callable[[], Any]]]) -> Callable[[], None]:
        with self._lock:
            self._users += 1
            self._undo += [hook() for hook in hooks]
        return self._leave

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            while self._users == 0 and self._undo:
                self._undo.pop()()


_settings = _Settings()


def _context(compiled: Any) -> Any:
    """Return the settings of a call of torch.compile, from what it returned."""
    kind = torch._dynamo.eval_frame._TorchDynamoContext
    for cell in compiled.__closure__ or ():
        if isinstance(cell.cell_contents, kind):
            return cell.cell_contents
    raise RuntimeError(
        "this torch does not tell how a module was compiled: compile the DataParallel instead, "
        "torch.compile(DataParallel(module))"
    )

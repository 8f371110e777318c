"""The training loop of a script that knows nothing of this, found by its optimizer's steps.

A step is what lies between the ends of two steps of one optimizer, the first that makes one. The
model is the outermost module that was called meanwhile and has most of the optimizer's parameters.
Parts of a step are known from when the model is called, and when a backward pass begins and ends.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers


class Enough(BaseException):
    """Ends the script: no ``except Exception`` of it holds this up."""


@dataclass
class Parts:
    """Seconds of a step, which may have several forward and backward passes."""

    loading: float = 0.0  # up to the first forward pass, and between the passes
    forward: float = 0.0  # with the loss
    backward: float = 0.0
    optimizer: float = 0.0  # after the last backward pass
    passes: int = 0

    @property
    def total(self) -> float:
        """Seconds of all of it."""
        return self.loading + self.forward + self.backward + self.optimizer


@dataclass
class _Clock:
    """Gives time to the part that is going on."""

    since: float = field(default_factory=lambda: time.perf_counter())
    part: str = "loading"
    parts: Parts = field(default_factory=Parts)

    def turn(self, to: str) -> None:
        now = time.perf_counter()
        setattr(self.parts, self.part, getattr(self.parts, self.part) + now - self.since)
        self.since, self.part = now, to


class _Hook:
    """A hook that copies of a module share, and what it refers to with it."""

    def __init__(self, call: Callable[..., None]) -> None:
        self.__call = call

    def __call__(self, *arguments: Any) -> None:
        self.__call(*arguments)

    def __deepcopy__(self, _: Any) -> _Hook:
        return self


class Loop:
    """Watches the training loop of this process while it is entered.

    Args:
        found: called after the loop's first step, with its model and optimizer.
        stepped: called after each further one. May raise `Enough`.
    """

    def __init__(
        self,
        found: Callable[[nn.Module, torch.optim.Optimizer], None],
        stepped: Callable[[Parts], None],
    ) -> None:
        self._found = found
        self._stepped = stepped
        self._optimizer: torch.optim.Optimizer | None = None
        self._model: nn.Module | None = None
        self._outermost: list[nn.Module] = []  # as they were called, in the first step
        self._depth = 0
        self._clock = _Clock()
        self._handles: list[Any] = []
        self._backward = torch.autograd.backward

    def __enter__(self) -> Loop:
        self._handles = [
            modules.register_module_forward_pre_hook(self._enter_module),
            modules.register_module_forward_hook(self._leave_module, always_call=True),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]

        @functools.wraps(self._backward)
        def backward(*arguments: Any, **options: Any) -> None:
            self._run_backward(*arguments, **options)

        torch.autograd.backward = backward
        return self

    def __exit__(self, *_: object) -> None:
        torch.autograd.backward = self._backward
        for handle in self._handles:
            handle.remove()

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        if self._depth == 0 and torch.is_grad_enabled():
            self._outermost.append(module)
        self._depth += 1

    def _leave_module(self, *_: Any) -> None:
        self._depth -= 1

    def _begin_forward(self, *_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if self._clock.part == "optimizer":  # a further pass of the same step
            self._clock.part = "loading"
        if self._clock.part == "loading":
            self._clock.turn("forward")

    def _run_backward(self, *arguments: Any, **options: Any) -> None:
        self._clock.turn("backward")
        try:
            self._backward(*arguments, **options)
        finally:
            self._clock.parts.passes += 1
            # What follows is the optimizer's, unless a further pass comes.
            self._clock.turn("optimizer")

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._optimizer is None:
            self._begin(optimizer)
        elif optimizer is self._optimizer:
            self._clock.turn("loading")
            parts, self._clock.parts = self._clock.parts, Parts()
            self._stepped(parts)
            self._clock.since = time.perf_counter()  # not of the loop
        else:
            return
        self._clock = _Clock()

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        model = _owner(self._outermost, optimizer)
        if model is None:
            self._outermost.clear()
            return  # an optimizer of something that is no module
        self._optimizer, self._model = optimizer, model
        for handle in self._handles[:2]:  # they cost time in each module
            handle.remove()
        self._handles[:2] = [model.register_forward_pre_hook(_Hook(self._begin_forward))]
        self._outermost.clear()
        self._found(model, optimizer)


def _owner(called: list[nn.Module], optimizer: torch.optim.Optimizer) -> nn.Module | None:
    """Return the module that has most of the parameters, or None if none has any."""
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}

    def shared(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters() if id(p) in wanted)

    best = max(called, key=shared, default=None)
    return best if best is not None and shared(best) > 0 else None


def send_through(model: nn.Module, outer: nn.Module) -> None:
    """Let calls of ``model`` go to ``outer``, which wraps it and calls it.

    The model keeps its identity, its hooks and its place in other modules.
    """
    inside = False

    class Through(type(model)):  # type: ignore[misc]
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            nonlocal inside
            if inside or self is not model:  # a copy
                return super().__call__(*arguments, **options)
            inside = True
            try:
                return outer(*arguments, **options)
            finally:
                inside = False

    Through.__name__ = type(model).__name__
    Through.__qualname__ = type(model).__qualname__
    model.__class__ = Through

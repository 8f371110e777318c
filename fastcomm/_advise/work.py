"""The user's training as the advisor runs it: one step, in parts whose ends are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fastcomm.nn.parallel.scatter_gather import first_tensor

LossFunction = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Work:
    """A model, a batch, and what becomes of them in a step. Pickled as one, it stays one.

    Attributes:
        model: on the device where it trains.
        sample: a batch as a data loader gives it: (inputs, targets), a tensor, or a mapping of
            the model's arguments.
        loss_fn: called with the model's output, and the targets if there are any; None: the output
            is the loss, or has it as ``loss``.
        optimizer: of the model's parameters; None: SGD.
    """

    model: nn.Module
    sample: Any
    loss_fn: LossFunction | None = None
    optimizer: torch.optim.Optimizer | None = None

    def optimizer_or_sgd(self) -> torch.optim.Optimizer:
        """Return the optimizer, or one whose steps change next to nothing."""
        if self.optimizer is not None:
            return self.optimizer
        return torch.optim.SGD(self.model.parameters(), lr=1e-6)

    def loss(self, model: Callable[..., Any]) -> torch.Tensor:
        """Run ``model``, which is the model or wraps it, forwards, and return the loss."""
        sample: Any = self.sample
        targets: tuple[Any, ...] = ()
        if isinstance(sample, (tuple, list)) and len(sample) == 2:
            sample, targets = sample[0], (sample[1],)
        if isinstance(sample, Mapping):
            output = model(**sample)
        elif isinstance(sample, (tuple, list)):
            output = model(*sample)
        else:
            output = model(sample)
        if self.loss_fn is not None:
            output = self.loss_fn(output, *targets)
        found = getattr(output, "loss", output)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            raise TypeError(
                f"the loss is {type(found).__name__}, not a tensor of one element: give loss_fn, "
                "which is called with the model's output and the targets"
            )
        return found

    def part(self, parts: int) -> Work:
        """Return the same with the first of so many equal parts of the batch.

        Raises:
            ValueError: the batch has fewer rows.
        """
        return Work(self.model, _first(self.sample, parts), self.loss_fn, self.optimizer)


def rows_of(value: Any) -> int:
    """Return the size of a batch: of the first tensor's first dimension; 0 without one."""
    tensor = first_tensor(dict(value) if isinstance(value, Mapping) else value)
    return 0 if tensor is None else tensor.shape[0]


def _first(value: Any, parts: int) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return value
        if value.shape[0] < parts:
            raise ValueError(f"a batch of {value.shape[0]} rows has no {parts} parts")
        return value[: value.shape[0] // parts].clone()
    if isinstance(value, Mapping):
        return {name: _first(each, parts) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_first(each, parts) for each in value)
    return value

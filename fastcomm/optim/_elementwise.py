"""Optimizers that treat every element by itself, so that rows can be stepped separately.

The update of an element depends on its own parameter, gradient and state, and on numbers of the
whole parameter (step counts, learning rates). The lists were made by reading torch's sources.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

ELEMENTWISE: frozenset[type] = frozenset(
    {
        torch.optim.ASGD,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    }
)
# The reasons why torch's other optimizers cannot be divided, for messages.
OTHERS = {
    "Adafactor": "it scales by sums over rows, columns and the whole parameter",
    "LBFGS": "it needs all gradients as one vector, and several evaluations a step",
    "Muon": "it makes the update of a whole matrix orthogonal",
    "SparseAdam": "it needs sparse gradients, which cannot be reduced in one pass",
}


def refuse_others(optimizer_class: Callable[..., torch.optim.Optimizer], elementwise: bool) -> None:
    """Raise an error for a class that would step differently on rows than on whole parameters.

    Args:
        optimizer_class: a class, or ``functools.partial`` of one.
        elementwise: True accepts a class that is not torch's own, as the caller's statement.

    Raises:
        TypeError: an optimizer instead of a class.
        ValueError: a class of torch in `OTHERS`, or an unknown class.
    """
    if isinstance(optimizer_class, torch.optim.Optimizer):
        name = type(optimizer_class).__name__
        raise TypeError(
            f"the first argument is a class, torch.optim.{name} for instance, and its arguments "
            f"follow; this is a {name} that has parameters already"
        )
    made = optimizer_class.func if isinstance(optimizer_class, partial) else optimizer_class
    if made in ELEMENTWISE:
        return
    name = getattr(made, "__name__", repr(made))
    if made is getattr(torch.optim, name, None) and name in OTHERS:
        raise ValueError(
            f"torch.optim.{name} cannot be divided by rows: {OTHERS[name]}. Reduce gradients with "
            "fused_all_reduce_ or DistributedDataParallel, and step on whole parameters"
        )
    if not elementwise:
        raise ValueError(
            f"{name} is not known to treat every element by itself, so that a step on rows of "
            "parameters might be another one. If it does, say so: elementwise=True"
        )

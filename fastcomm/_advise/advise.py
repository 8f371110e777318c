"""`advise`: what a second device would bring for a model of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fastcomm._advise.advice import Advice, advice_from
from fastcomm._advise.crew import AdviseError
from fastcomm._advise.measure import measure
from fastcomm._advise.sources import OfModel
from fastcomm._advise.told import Spec
from fastcomm._advise.work import LossFunction, Work, rows_of
from fastcomm._launch import pickles

__all__ = ["Advice", "AdviseError", "advise"]

TURNS = 6
LINKS = (10.0,)


def advise(
    model: nn.Module,
    sample: Any,
    loss_fn: LossFunction | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    ranks: Sequence[int] | None = None,
    verify: bool = False,
    turns: int = TURNS,
    links: Sequence[float] = LINKS,
    progress: Callable[[str], None] | None = None,
) -> Advice:
    """Predict what more devices of this machine would bring for a model, and recommend a way.

    Processes train copies of the model by turns: one alone, several beside each other in
    DistributedDataParallel whose gradients are not sent, and replicas in threads that do not
    exchange theirs. What messages cost is measured besides, alone and beside the computation. A
    step with messages is then replayed from both.

    Print the advice, for which the package tabulate is needed, or see `Advice.sentence`,
    `Advice.as_json` and `Advice.plot`.

    Args:
        model: on the device where it trains. It is copied, and stays as it is.
        sample: a batch as a data loader gives it: (inputs, targets), a tensor, or a mapping of the
            model's arguments. The first dimension of its tensors is the batch's.
        loss_fn: called with the model's output, and the targets if there are any; None: the output
            is the loss, or has it as ``loss``.
        optimizer: of the model's parameters; None: SGD.
        ranks: numbers of devices to try; 2, 4 and so on up to the machine's, at most 8, by default.
        verify: also run what is predicted, and tell the errors.
        turns: of each way. More are more exact.
        links: speeds between hosts, in Gbit/s.
        progress: called with a line of text now and then.

    Returns:
        The advice.

    Raises:
        AdviseError: the training cannot be run so; the message says why.
        ValueError: ``ranks``, ``turns`` or ``links`` that make no sense; a batch without rows.
        RuntimeError: the model or another argument cannot be pickled.
        KeyboardInterrupt: Ctrl-C; no process is left.
    """
    if rows_of(sample) == 0:
        raise ValueError("the sample has no tensor with rows, so its batch has no size")
    train = OfModel(pickles.save(Work(model, sample, loss_fn, optimizer)))
    return advise_on(train, ranks, verify, turns, links, progress or (lambda _: None))


def advise_on(
    train: Callable[[Spec], None],
    ranks: Sequence[int] | None,
    verify: bool,
    turns: int,
    links: Sequence[float],
    progress: Callable[[str], None],
) -> Advice:
    """Return the advice for what trains; see `advise`.

    Raises:
        ValueError: numbers that make no sense.
    """
    if any(number < 2 for number in ranks or ()):
        raise ValueError(f"ranks must be 2 or more, not {list(ranks or ())}")
    if turns < 2:
        raise ValueError(f"turns must be 2 or more, not {turns}")
    if any(not link > 0 for link in links):
        raise ValueError(f"links must be above 0 Gbit/s, not {list(links)}")
    recorded, notes = measure(train, ranks, turns, verify, progress)
    return advice_from(recorded, links, notes)

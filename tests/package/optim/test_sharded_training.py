"""ShardedOptimizer trains to the losses of one process with the optimizer itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.one_process import Uneven, give_mean, loss_of
from support.ranks import World, run_ranks

import fastcomm

STEPS = 12
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}
CASES = [(name, max_norm) for name in OPTIMIZERS for max_norm in (None, 2.0)]

# For each case: the losses of every step, of one rank or of all, and the final parameters.
Trained = list[tuple[list[Any], list[torch.Tensor]]]


def _model() -> Uneven:
    torch.manual_seed(4)
    return Uneven()


def _sharded(world: World) -> Trained:
    world.init()
    trained: Trained = []
    for name, max_norm in CASES:
        kind, settings = OPTIMIZERS[name]
        model = _model()
        optimizer = fastcomm.optim.ShardedOptimizer(
            model.parameters(), kind, max_norm=max_norm, **settings
        )
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, world.rank, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        trained.append((losses, [p.detach() for p in model.parameters()]))
    return trained


def _one_process(world: World, ranks: int, ours: bool) -> Trained:
    """Train without a group, and clip by our norm, or torch's."""
    clip: Callable[..., Any] = fastcomm.clip_grad_norm_ if ours else torch.nn.utils.clip_grad_norm_
    trained: Trained = []
    for name, max_norm in CASES:
        kind, settings = OPTIMIZERS[name]
        model = _model()
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = kind(parameters, **settings)
        losses, norms = [], []
        for step in range(STEPS):
            of_ranks = [loss_of(model, rank, step) for rank in range(ranks)]
            give_mean(parameters, of_ranks)
            if max_norm is not None:
                norms.append(float(clip(parameters, max_norm)))
            optimizer.step()
            losses.append([loss.item() for loss in of_ranks])
        assert max_norm is None or min(norms) < max_norm < max(norms)  # some steps clip, some not
        trained.append((losses, [p.detach() for p in model.parameters()]))
    return trained


@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_and_weights_are_those_of_one_process(ranks: int) -> None:
    """To the bit; to 1e-5 with torch's clipping, whose norm is summed in another order."""
    (expected,) = run_ranks(1, _one_process, ranks, True)
    (close,) = run_ranks(1, _one_process, ranks, False)
    for rank, trained in enumerate(run_ranks(ranks, _sharded)):
        for (losses, weights), (wanted, same), (near, _) in zip(
            trained, expected, close, strict=True
        ):
            assert losses == [step[rank] for step in wanted]
            assert losses == pytest.approx([step[rank] for step in near], rel=1e-5)
            assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
            assert losses[-1] < 0.5 * losses[0]

"""Pipeline stages: losses and gradients are those of the model in one piece."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.alike import run_each
from support.ranks import World
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

WIDTH, BATCH, MICROBATCHES, STEPS = 12, 16, 8, 2
SCHEDULES = [
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
]


def _layers(count: int) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)) for _ in range(STEPS)]


def _loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(y, target)


def _whole(count: int) -> tuple[list[float], list[list[torch.Tensor]]]:
    """Train the model in one piece: return each step's loss, and each layer's final parameters."""
    layers = _layers(count)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for x, target in _batches():
        optimizer.zero_grad()
        loss = _loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [[p.detach() for p in layer.parameters()] for layer in layers]


def _step(schedule: Any, first: bool, last: bool, batch: tuple[Any, Any]) -> list[Any]:
    x, target = batch
    losses: list[Any] = []
    schedule.step(*([x] if first else []), **({"target": target, "losses": losses} if last else {}))
    return losses


def _pipeline(name: str, world: World) -> dict[str, Any]:
    """Train, and return the losses of microbatches and the parameters of this rank's layers."""
    kind = getattr(pipelining, name)
    per_rank = 2 if issubclass(kind, PipelineScheduleMulti) else 1
    count = per_rank * world.size
    layers = _layers(count)
    mine = range(world.rank, count, world.size)
    stages = [PipelineStage(layers[i], i, count, torch.device("cpu")) for i in mine]
    schedule: PipelineScheduleSingle | PipelineScheduleMulti = kind(
        stages if per_rank > 1 else stages[0], n_microbatches=MICROBATCHES, loss_fn=_loss
    )
    optimizer = torch.optim.SGD([p for i in mine for p in layers[i].parameters()], lr=0.5)
    losses = []
    for batch in _batches():
        optimizer.zero_grad()
        losses.append(_step(schedule, 0 in mine, count - 1 in mine, batch))
        optimizer.step()
    return {"losses": losses, **{str(i): list(layers[i].parameters()) for i in mine}}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_losses_are_those_of_one_piece(name: str, size: int) -> None:
    """Ranks sum nothing among them, so all bits are those over Gloo as well."""
    found = run_each(size, _pipeline, SCHEDULES, name)
    layers = {key: value for rank in found for key, value in rank.items() if key != "losses"}
    losses, parameters = _whole(len(layers))
    of_steps = found[-1]["losses"]
    for seen, wanted in zip(of_steps, losses, strict=True):
        assert torch.stack(seen).mean().item() == pytest.approx(wanted, rel=1e-5)
    for index, wanted_of_layer in enumerate(parameters):
        for ours, theirs in zip(layers[str(index)], wanted_of_layer, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

"""docs/examples/mixed_precision.py: autocast and a loss scale train as they do in one process."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.one_process import give_mean
from support.ranks import World, run_ranks
from support.torchrun import torchrun
from support.tree import same_bits
from torch import nn

import fastcomm

SCRIPT = Path(__file__).resolve().parents[3] / "docs/examples/mixed_precision.py"
WAYS = ["stock", "clipped", "sharded"]
STEPS, BAD = 8, 3  # in step BAD gradients overflow, on one rank only

Seen = list[tuple[float, float]]  # for each step: loss and scale


def _example() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def _batches(example: dict[str, Any], rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the example's; in one, rank 1's loss is large: its scaled gradients overflow fp16."""
    for step, (x, y) in enumerate(example["batches"](rank, STEPS)):
        yield x, 1e4 * y if step == BAD and rank == 1 else y


def _train(world: World, way: str) -> tuple[Seen, list[torch.Tensor]]:
    world.init()
    example = _example()
    model = example["build"]()
    seen = example[way](model, _batches(example, world.rank))
    return seen, [p.detach() for p in model.parameters()]


def _one_process(
    world: World, way: str, ranks: int
) -> tuple[list[Seen], list[torch.Tensor], list[list[bool]]]:
    """Train without a group: separate gradients, their mean, torch's scaler and optimizer.

    Returns what each rank sees, the parameters, and for each step which ranks' gradients are
    finite.
    """
    example = _example()
    model = example["build"]()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=example["LR"])
    scaler = torch.amp.GradScaler("cpu", init_scale=example["SCALE"])
    seen: list[Seen] = [[] for _ in range(ranks)]
    finite = []
    for of_ranks in zip(*(_batches(example, rank) for rank in range(ranks)), strict=True):
        losses = []
        for x, y in of_ranks:
            with torch.autocast("cpu", torch.float16):
                losses.append(nn.functional.mse_loss(model(x), y))
        gradients = give_mean(parameters, [scaler.scale(loss) for loss in losses])
        finite.append([all(bool(g.isfinite().all()) for g in own) for own in gradients])
        _clip(way, parameters, optimizer, scaler, example["MAX_NORM"])
        scaler.step(optimizer)
        scaler.update()
        for rank, loss in enumerate(losses):
            seen[rank].append((loss.item(), scaler.get_scale()))
    return seen, [p.detach() for p in parameters], finite


def _clip(
    way: str,
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    max_norm: float,
) -> None:
    """Clip as each way does, so that bits can be compared: norms are summed in different orders."""
    if way == "clipped":  # gradients that are still scaled
        fastcomm.clip_grad_norm_(parameters, max_norm * scaler.get_scale())
        return
    scaler.unscale_(optimizer)
    clip = torch.nn.utils.clip_grad_norm_ if way == "stock" else fastcomm.clip_grad_norm_
    clip(parameters, max_norm)


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_scales_are_those_of_one_process(way: str) -> None:
    """To the bit: with two ranks it does not matter whether one divides before or after a sum."""
    ((expected, parameters, finite),) = run_ranks(1, _one_process, way, 2)
    assert [step for step, both in enumerate(finite) if both != [True, True]] == [BAD]
    assert finite[BAD] == [True, False]
    results = run_ranks(2, _train, way)
    for (seen, trained), wanted in zip(results, expected, strict=True):
        assert seen == wanted
        assert all(same_bits(a, b) for a, b in zip(trained, parameters, strict=True))
    scales = [scale for _, scale in results[0][0]]
    assert scales == [1024.0] * BAD + [512.0] * (STEPS - BAD)


def test_the_three_ways_train_alike() -> None:
    """Except for the last bits of a norm, which fp16 turns into differences up to its epsilon."""
    stock, *others = (run_ranks(2, _train, way) for way in WAYS)
    for ranks in others:
        for (seen, _), (wanted, _) in zip(ranks, stock, strict=True):
            assert seen == [(pytest.approx(loss, rel=1e-3), scale) for loss, scale in wanted]


def test_the_script() -> None:
    said = torchrun(SCRIPT, *WAYS, ranks=2)
    lines = re.findall(r"rank (\d), (\w+): loss (\S+), then (\S+); scale (\d+)", said)
    assert {(rank, way) for rank, way, *_ in lines} == {(r, w) for r in "01" for w in WAYS}
    assert all(float(last) < float(first) / 10 for *_, first, last, _ in lines)
    assert len({scale for *_, scale in lines}) == 1

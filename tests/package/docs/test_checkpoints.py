"""docs/examples/checkpoints.py: training goes on, with other ranks and a plain optimizer too."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support import scripts
from support.on_ranks import on_ranks
from support.one_process import Uneven, give_mean, loss_of
from support.ranks import World, run_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import fastcomm

SCRIPT = Path(__file__).resolve().parents[3] / "docs/examples/checkpoints.py"
EXAMPLE = runpy.run_path(str(SCRIPT))
STEPS = 3

Whole = dict[str, torch.Tensor]


def _whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> Whole:
    """Return copies of all parameters, and of all of the optimizer's state."""
    full = StateDictOptions(full_state_dict=True)
    of_model, of_optimizer = get_state_dict(model, optimizer, options=full)
    states = {f"{k}.{name}": v for k, s in of_optimizer["state"].items() for name, v in s.items()}
    return {name: value.clone() for name, value in {**of_model, **states}.items()}


def _same(a: Whole, b: Whole) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _made(world: World, way: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    if way != "plain":
        world.init()
    torch.manual_seed(seed)
    made: tuple[nn.Module, torch.optim.Optimizer] = EXAMPLE["wrap"](way, Uneven())
    return made


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, first: int
) -> list[float]:
    losses = []
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        losses.append(loss_of(model, rank, step))
        losses[-1].backward()
        optimizer.step()
    return [loss.item() for loss in losses]


def _save(world: World, way: str, folder: str) -> Whole:
    model, optimizer = _made(world, way, seed=1)
    _steps(model, optimizer, world.rank, 0)
    EXAMPLE["save"](folder, model, optimizer)
    return _whole(model, optimizer)


def _go_on(world: World, way: str, folder: str) -> tuple[Whole, list[float], Whole]:
    """Return what was loaded, the losses of more steps, and the state after them."""
    model, optimizer = _made(world, way, seed=2)
    EXAMPLE["load"](folder, model, optimizer)
    loaded = _whole(model, optimizer)
    return loaded, _steps(model, optimizer, world.rank, STEPS), _whole(model, optimizer)


def _go_on_in_one_process(
    world: World, folder: str, ranks: int
) -> tuple[Whole, list[list[float]], Whole]:
    """Load into a plain model and optimizer, and step with the mean of what ranks would have."""
    model, optimizer = _made(world, "plain", seed=3)
    EXAMPLE["load"](folder, model, optimizer)
    loaded = _whole(model, optimizer)
    trained = [p for p in model.parameters() if p.requires_grad]
    losses = []
    for step in range(STEPS, 2 * STEPS):
        of_ranks = [loss_of(model, rank, step) for rank in range(ranks)]
        give_mean(trained, of_ranks)
        optimizer.step()
        losses.append([loss.item() for loss in of_ranks])
    return loaded, losses, _whole(model, optimizer)


# DDP with a power of two only: see give_mean().
@pytest.mark.parametrize(
    ("saved_by", "of", "loaded_by", "ranks"),
    [
        ("sharded", 2, "sharded", 3),
        ("sharded", 4, "sharded", 2),
        ("sharded", 2, "ddp", 4),
        ("ddp", 4, "ddp", 2),
        ("ddp", 2, "sharded", 3),
        ("plain", 1, "sharded", 2),
    ],
)
def test_other_ranks_and_one_process_go_on_alike(
    saved_by: str, of: int, loaded_by: str, ranks: int, tmp_path: Path
) -> None:
    saved = run_ranks(of, _save, saved_by, str(tmp_path))
    results = run_ranks(ranks, _go_on, loaded_by, str(tmp_path))
    ((loaded, losses, ended),) = run_ranks(1, _go_on_in_one_process, str(tmp_path), ranks)
    assert any(name.endswith("exp_avg_sq") for name in loaded)
    for whole in (*saved, *(result[0] for result in results)):
        assert _same(whole, loaded)
    for (_, of_rank, trained), wanted in zip(results, zip(*losses, strict=True), strict=True):
        assert of_rank == list(wanted)
        assert _same(trained, ended)


def _scaled(world: World, way: str, folder: str, run: str) -> tuple[list[Any], Whole]:
    """Train for six steps; or for three and save; or load, and train for the other three."""
    model, optimizer = _made(world, way, seed=2 if run == "second" else 1)
    scaler = fastcomm.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    others = {"scaler": scaler, "scheduler": scheduler}
    if run == "second":
        EXAMPLE["load"](folder, model, optimizer, **others)
    seen = []
    for step in {"all": range(2 * STEPS), "first": range(STEPS)}.get(run, range(STEPS, 2 * STEPS)):
        optimizer.zero_grad()
        loss = loss_of(model, world.rank, step)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        seen.append((loss.item(), scaler.get_scale(), scheduler.get_last_lr()))
    if run == "first":
        EXAMPLE["save"](folder, model, optimizer, **others)
    return seen, _whole(model, optimizer)


@pytest.mark.parametrize("way", ["sharded", "ddp"])
def test_an_interruption_changes_nothing(way: str, tmp_path: Path) -> None:
    """With a scaler and a scheduler, whose state is saved with the rest."""
    at_once, first, second = (
        run_ranks(2, _scaled, way, str(tmp_path), run) for run in ("all", "first", "second")
    )
    for rank in range(2):
        assert first[rank][0] + second[rank][0] == at_once[rank][0]
        assert _same(second[rank][1], at_once[rank][1])
    assert len({scale for _, scale, _ in at_once[0][0]}) > 1


@on_ranks(2)
def test_steps_go_on_while_a_checkpoint_is_written(world: World, tmp_path: Path) -> None:
    model, optimizer = _made(world, "sharded", seed=1)
    _steps(model, optimizer, world.rank, 0)
    before = _whole(model, optimizer)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    written = dcp.async_save(state, checkpoint_id=str(tmp_path), process_group=dist.new_group())
    _steps(model, optimizer, world.rank, STEPS)
    written.result()
    assert not _same(_whole(model, optimizer), before)
    EXAMPLE["load"](str(tmp_path), model, optimizer)
    assert _same(_whole(model, optimizer), before)


@on_ranks(3)
def test_the_other_forms_of_a_state_load(world: World) -> None:
    """Load what get_state_dict() returns in its other forms."""
    model, optimizer = _made(world, "sharded", seed=1)
    _steps(model, optimizer, world.rank, 0)
    forms = [{"flatten_optimizer_state_dict": True}, {"full_state_dict": True}]
    for options in (StateDictOptions(**form) for form in forms):
        other, its = EXAMPLE["wrap"]("sharded", Uneven())
        a, b = get_state_dict(model, optimizer, options=options)
        set_state_dict(other, its, model_state_dict=a, optim_state_dict=b, options=options)
        assert _same(_whole(other, its), _whole(model, optimizer))


def test_the_page_shows_what_the_example_does() -> None:
    page = (SCRIPT.parents[1] / "checkpoints.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert textwrap.indent(code, "    ") in SCRIPT.read_text()


def test_the_script(tmp_path: Path) -> None:
    ended = scripts.run(tmp_path, str(SCRIPT), "sharded", str(tmp_path), ranks=2)
    (alone,) = scripts.run(tmp_path, str(SCRIPT), "plain", str(tmp_path))
    assert [each.status for each in (*ended, alone)] == [0, 0, 0], (ended, alone)
    said = "".join(each.said for each in (*ended, alone))
    seen = re.findall(r"step (\d+): loss (\S+)", said)
    assert [int(step) for step, _ in seen] == list(range(10))
    assert float(seen[-1][1]) < float(seen[4][1]) < float(seen[0][1])

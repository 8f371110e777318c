"""Accelerate over fastcomm: the group is formed first, and Accelerate takes the one that is there.

Everything is what it is over Gloo, to the bit: two ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.alike import assert_ranks_alike, plain
from support.installed import needs
from support.ranks import World, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import fastcomm
from fastcomm.ddp_comm_hooks import FusedState, fused_hook

needs("accelerate")

ACCUMULATED, UPDATES, HALF = 2, 6, 3
WIDTH, CLASSES, BATCH = 8, 3, 2


def _accelerator(world: World, **options: Any) -> Any:
    """Form the group, and return an Accelerator that has taken it."""
    world.init()
    world.set_variables()
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **options)
    assert accelerator.num_processes == world.size
    assert dist.get_backend() == world.backend
    if world.backend == "fastcomm":
        assert fastcomm.explain("all_reduce", torch.ones(8)).native
    return accelerator


def _rows(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    return TensorDataset(torch.randn(count, WIDTH, generator=generator), labels)


def _evaluate(accelerator: Any, model: nn.Module, loader: Any) -> Any:
    """Return what all ranks have for each row of an uneven set, once."""
    model.eval()
    with torch.no_grad():
        seen = [accelerator.gather_for_metrics((model(x), y)) for x, y in loader]
    model.train()
    return [torch.cat(parts) for parts in zip(*seen, strict=True)]


def _train(world: World, folder: str, first: int, hook: bool = False) -> Any:
    """Take the updates from ``first`` on; from a checkpoint, if it is not the first of all."""
    from accelerate.utils import DataLoaderConfiguration

    # With a sampler whose state is saved. Dropout is not here: a loader that skips draws otherwise.
    config = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = _accelerator(
        world, gradient_accumulation_steps=ACCUMULATED, dataloader_config=config
    )
    torch.manual_seed(7)
    body = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    made = torch.optim.AdamW(body.parameters(), lr=0.05)
    halved = torch.optim.lr_scheduler.StepLR(made, 2, 0.5)
    rows = _rows(UPDATES * ACCUMULATED * BATCH * world.size, seed=1)
    loaders = DataLoader(rows, BATCH, shuffle=True), DataLoader(_rows(7, seed=2), BATCH)
    model, optimizer, loader, rest, scheduler = accelerator.prepare(body, made, *loaders, halved)
    assert isinstance(model, DistributedDataParallel)
    if hook:
        model.register_comm_hook(FusedState(model.parameters()), fused_hook)
    seen = first * ACCUMULATED
    if first:
        accelerator.load_state(folder)
    losses, norms = [], []
    for x, y in accelerator.skip_first_batches(loader, seen) if first else loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()))
        seen += 1
        if not hook and seen == HALF * ACCUMULATED:
            accelerator.save_state(folder)
    assert seen == UPDATES * ACCUMULATED and len(norms) == UPDATES - first
    assert any(norm > 0.5 for norm in norms)  # so that clipping does something
    of_rows, labels = _evaluate(accelerator, model, rest)
    assert labels.tolist() == [row % CLASSES for row in range(7)]
    return plain(
        {
            "losses": losses[-(UPDATES - HALF) * ACCUMULATED :],
            "norms": norms[-(UPDATES - HALF) :],
            "of rows": of_rows,
            "weights": list(model.parameters()),
            "rate": scheduler.get_last_lr(),
        }
    )


def test_a_training_and_its_checkpoint(tmp_path: Path) -> None:
    """Over fastcomm the same, also from Gloo's checkpoint on, and with a fused hook."""
    ours, theirs = str(tmp_path / "fastcomm"), str(tmp_path / "gloo")
    expected = run_ranks(2, _train, theirs, 0, backend="gloo")
    for of_whom, first, hook in ((ours, 0, False), (theirs, HALF, False), (ours, 0, True)):
        assert_ranks_alike(run_ranks(2, _train, of_whom, first, hook), expected)
    assert not torch.equal(expected[0]["losses"][0], expected[0]["losses"][-1])


def _operate(world: World) -> Any:
    """Call what Accelerate has besides training."""
    accelerator = _accelerator(world)
    from accelerate.utils import DataLoaderConfiguration, broadcast, broadcast_object_list, reduce

    mine = torch.arange(4.0) + world.rank
    uneven = torch.full((world.rank + 1, 2), float(world.rank))
    config = DataLoaderConfiguration(dispatch_batches=True)
    accelerator.dataloader_config = config
    batches = [x for x, _ in accelerator.prepare(DataLoader(_rows(10, seed=3), BATCH))]
    values = {
        "gather": accelerator.gather({"a": mine, "b": [mine.long()]}),
        "objects": accelerator.gather_for_metrics([f"rank {world.rank}"], use_gather_object=True),
        "broadcast": broadcast(mine.clone(), from_process=1),
        "broadcast objects": broadcast_object_list([world.rank, "x"], from_process=1),
        "sum": reduce(mine.clone(), "sum"),
        "mean": accelerator.reduce(mine.clone(), "mean"),
        "padded": accelerator.pad_across_processes(uneven, pad_index=-1),
        "dispatched": batches,
        "trigger": (accelerator.set_trigger() if world.rank else None, accelerator.check_trigger()),
    }
    with accelerator.split_between_processes(list(range(5))) as part:
        values["part"] = part
    with accelerator.main_process_first():
        accelerator.wait_for_everyone()
    return plain(values)


def test_what_it_has_besides_training() -> None:
    expected = run_ranks(2, _operate, backend="gloo")
    found = run_ranks(2, _operate)
    assert_ranks_alike(found, expected)
    for rank, values in enumerate(found):
        assert values["broadcast"].tolist() == [1, 2, 3, 4]
        assert values["mean"].tolist() == [0.5, 1.5, 2.5, 3.5]
        assert values["objects"] == ["rank 0", "rank 1"]
        assert values["trigger"] == [None, True]
        assert values["part"] == [[0, 1, 2], [3, 4]][rank]


def _refuse(world: World) -> None:
    _accelerator(world)
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import InitProcessGroupKwargs

    AcceleratorState._reset_state(reset_partial_state=True)
    named = InitProcessGroupKwargs(backend="fastcomm")
    with pytest.raises(ValueError, match="fastcomm is not available, please use gloo"):
        Accelerator(cpu=True, kwargs_handlers=[named])


def test_its_own_name_for_the_backend_is_still_refused() -> None:
    """Once this fails, docs/frameworks.md has a shorter way to tell of."""
    run_ranks(2, _refuse)

"""Checkpoints that any number of ranks can load, with an optimizer that is divided or not.

    torchrun --nproc-per-node 2 docs/examples/checkpoints.py sharded checkpoints  # steps 0 to 4
    torchrun --nproc-per-node 3 docs/examples/checkpoints.py sharded checkpoints  # steps 5 to 9
    torchrun --nproc-per-node 2 docs/examples/checkpoints.py ddp checkpoints  # steps 10 to 14
    python docs/examples/checkpoints.py plain checkpoints  # steps 15 to 19, in one process

Each run goes on from the last checkpoint in the folder; docs/checkpoints.md says what is in them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import fastcomm


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **others: Any) -> None:
    """Write a checkpoint; every rank calls it.

    Args:
        folder: one of its own for each checkpoint.
        model: wrapped or not.
        optimizer: divided or not.
        others: what has a state_dict() and a load_state_dict(), as schedulers and scalers do.
    """
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer, **others}
    dcp.save(state, checkpoint_id=folder)


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **others: Any) -> None:
    """Read a checkpoint into what has been made anew, on as many ranks as there are now."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer, **others}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )


def wrap(way: str, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model as it is to be called, and its optimizer."""
    if way == "sharded":
        return model, fastcomm.optim.ShardedOptimizer(
            model.parameters(), torch.optim.AdamW, lr=0.01
        )
    if way == "ddp":
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def main() -> None:
    """Train for five steps from where the last run ended."""
    way, folder = sys.argv[1], Path(sys.argv[2])
    if way != "plain":
        dist.init_process_group("fastcomm")
    rank = dist.get_rank() if dist.is_initialized() else 0
    model, optimizer = wrap(way, nn.Sequential(nn.Linear(16, 37), nn.Tanh(), nn.Linear(37, 1)))
    whole = folder.glob("*/.metadata")  # written last
    done = max((int(path.parent.name) for path in whole), default=0)
    if done:
        load(folder / str(done), model, optimizer)
    for step in range(done, done + 5):
        x = torch.randn(64, 16, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    save(folder / str(done + 5), model, optimizer)
    if way != "plain":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

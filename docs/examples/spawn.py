"""DistributedDataParallel by `torch.multiprocessing.spawn`, as in PyTorch's tutorial of DDP.

    python docs/examples/spawn.py 2

The number of ranks may be left out: it is then that of the GPUs, or 2. Without a file of its own,
in a notebook, `fastcomm.launch` does this: docs/examples/notebook.ipynb.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, ranks: int) -> None:
    """Train as one of the ranks."""
    device = torch.device("cpu")
    if gpus := torch.accelerator.device_count():
        device = torch.device(rank % gpus)
        torch.accelerator.set_device_index(device)
    dist.init_process_group("fastcomm", rank=rank, world_size=ranks)
    torch.manual_seed(rank)  # DDP gives all ranks the weights of rank 0
    layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        x = torch.randn(32, 16).to(device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank}: weights sum to {sum(p.sum().item() for p in model.parameters()):.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.accelerator.device_count() or 2
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    torch.multiprocessing.spawn(train, (ranks,), nprocs=ranks)

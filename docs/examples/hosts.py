"""Stock DDP on several hosts, whatever starts the ranks; docs/frameworks/hosts.md has the commands.

Under torchrun the variables of torch are there. Slurm has others. And with the number of ranks on
each host as an argument, RANK and WORLD_SIZE count hosts, and this program starts the ranks itself.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fastcomm


def train() -> None:
    """Train as one rank; MASTER_ADDR and MASTER_PORT are those of rank 0's host."""
    dist.init_process_group("fastcomm")
    torch.manual_seed(rank := dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    how = fastcomm.explain("all_reduce", model.module.weight).algorithm
    print(f"rank {rank}, {how}: weights sum to {model.module.weight.sum():.6f}")
    dist.destroy_process_group()


def spawned(local_rank: int, host: int, hosts: int, ranks: int) -> None:
    """Train as one of the ranks that this program has started on a host."""
    os.environ.update(RANK=str(host * ranks + local_rank), WORLD_SIZE=str(hosts * ranks))
    train()


if __name__ == "__main__":
    of = os.environ
    if len(sys.argv) > 1:
        places = (int(of["RANK"]), int(of["WORLD_SIZE"]), int(sys.argv[1]))
        torch.multiprocessing.spawn(spawned, places, nprocs=int(sys.argv[1]))
    else:
        if "RANK" not in of:  # srun alone
            of.update(RANK=of["SLURM_PROCID"], WORLD_SIZE=of["SLURM_NTASKS"])
        train()

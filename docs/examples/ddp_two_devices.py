"""DistributedDataParallel around a model that lies on two devices.

    torchrun --nproc-per-node 2 docs/examples/ddp_two_devices.py

Each rank has two GPUs, one for each part of the model, and DDP no device_ids. Without GPUs, or with
fewer than two, both parts lie on the CPU.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

here = there = torch.device("cpu")
if (gpus := torch.accelerator.device_count()) > 1:
    first = 2 * int(os.environ["LOCAL_RANK"])
    here, there = (torch.device(i % gpus) for i in (first, first + 1))
    torch.accelerator.set_device_index(here)
dist.init_process_group("fastcomm")


class TwoParts(nn.Module):
    """``second(first(x))``, each on its device."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 64), nn.Tanh()).to(here)
        self.second = nn.Linear(64, 1).to(there)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row for each row of ``x``."""
        return self.second(self.first(x.to(here)).to(there))


torch.manual_seed(rank := dist.get_rank())  # DDP gives all ranks the weights of rank 0
model = DistributedDataParallel(TwoParts())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    x = torch.randn(32, 16)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).to(there) / 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {rank}: weights sum to {sum(p.sum().item() for p in model.parameters()):.6f}")
dist.destroy_process_group()

"""One block of a model runs on all devices, the rest of it on the first one.

    python docs/examples/data_parallel_block.py

Only the block's work is divided; what is before and behind it has the whole batch.
"""

from __future__ import annotations

import torch
from torch import nn

from fastcomm.nn.parallel import DataParallel

gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
devices = gpus or [torch.device("cpu")] * 2  # without GPUs two replicas on the CPU


class Model(nn.Module):
    """Two small layers, and between them a block that takes most of the time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.block: nn.Module = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32))
        self.last = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row for each row of ``x``."""
        x = self.first(x).tanh()
        return self.last(x + self.block(x))


torch.manual_seed(0)
model = Model().to(devices[0])
model.block = DataParallel(model.block, devices)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for _ in range(5):
    x = torch.randn(32, 16).to(devices[0])
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")

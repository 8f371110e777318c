"""Each device computes a part of every batch: the losses are those of one device.

    python docs/examples/data_parallel.py

fastcomm's DataParallel takes what torch's takes; docs/data-parallel.md says what else it does.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from fastcomm.nn.parallel import DataParallel

gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
devices = gpus or [torch.device("cpu")] * 2  # without GPUs two replicas on the CPU


def train(model: nn.Module) -> list[float]:
    """Return the losses of five steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        x = torch.randn(32, 16, generator=generator).to(devices[0])
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(devices[0])
alone = train(copy.deepcopy(model))
parallel = train(DataParallel(model, devices))
print(
    f"loss {parallel[0]:.4f}, then {parallel[-1]:.4f}; "
    f"on one device {alone[0]:.4f}, then {alone[-1]:.4f}"
)

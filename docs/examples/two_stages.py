"""A model in two stages: while the second has one micro-batch, the first has the next.

    python docs/examples/two_stages.py

A stage may be a DataParallel, which gives its results to any device, here to the next stage's.
Autograd runs each device's part of the backward pass in a thread of its own, except on the CPU.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from fastcomm.nn.parallel import DataParallel


class TwoStages(nn.Module):
    """``second(first(x))``, in micro-batches: one is in each stage at a time."""

    def __init__(self, first: nn.Module, second: nn.Module, micro_batches: int) -> None:
        super().__init__()
        self.first, self.second, self.micro_batches = first, second, micro_batches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of all micro-batches; the first stage's thread has ended then."""
        grad = torch.is_grad_enabled()  # which every thread has for itself
        with ThreadPoolExecutor(1, initializer=torch.set_grad_enabled, initargs=(grad,)) as ahead:
            results = ahead.map(self.first, x.chunk(self.micro_batches))
            return torch.cat([self.second(result) for result in results])


if __name__ == "__main__":
    gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
    devices = gpus if len(gpus) > 1 else [torch.device("cpu")] * 4
    here, there = devices[: len(devices) // 2], devices[len(devices) // 2 :]
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(16, 64), nn.Tanh()).to(here[0])
    second = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(there[0])
    model = TwoStages(DataParallel(first, here, there[0]), DataParallel(second, there), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x = torch.randn(64, 16)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).to(there[0]) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")

"""A model over two devices, each with half of it; where there are more, each half has replicas.

    python docs/examples/model_parallel.py

In docs/examples/two_stages.py both halves work at the same time, on parts of the batch.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from fastcomm.nn.parallel import DataParallel

gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
devices = gpus if len(gpus) > 1 else [torch.device("cpu")] * 4
here, there = devices[: len(devices) // 2], devices[len(devices) // 2 :]


class Halves(nn.Module):
    """``second(first(x))``; the results of each half lie where the next thing begins."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = DataParallel(first.to(here[0]), here, output_device=there[0])
        self.second = DataParallel(second.to(there[0]), there)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row for each row of ``x``."""
        return self.second(self.first(x))


torch.manual_seed(0)
layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
whole = nn.Sequential(*copy.deepcopy(layers))
halves = Halves(nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:]))
for model, name in ((halves, "in halves"), (whole, "in one piece")):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(32, 16, generator=generator)
        output = model(x)
        loss = nn.functional.mse_loss(output, x.sum(1, keepdim=True).to(output.device) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{name}: loss {loss.item():.4f}")

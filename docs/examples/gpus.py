"""Train stock DistributedDataParallel, a process for each GPU; without GPUs on the CPU.

    torchrun --nproc-per-node 2 docs/examples/gpus.py

docs/gpus.md says what to expect on which box, and what to do when it is something else.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn

import fastcomm


def train(device: torch.device, steps: int = 20) -> list[torch.Tensor]:
    """Train a small model on this rank's part of the data; returns its weights, on the CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        x = torch.randn(32, 64).to(device)
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(x), x[:, :8]).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def main() -> None:
    """Choose the device, train, and say which way the gradients took."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("fastcomm")
    weights = train(device)
    if dist.get_rank() == 0:
        print(fastcomm.explain("all_reduce", torch.ones(1 << 20, device=device)).reason)
        print(f"trained, weights sum to {sum(w.double().sum() for w in weights):.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

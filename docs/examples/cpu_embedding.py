"""A large embedding stays on the CPU, with sparse gradients; the rest is data-parallel.

    python docs/examples/cpu_embedding.py

The embedding's gradients hold the rows that a batch uses, and no others.
"""

from __future__ import annotations

import torch
from torch import nn

from fastcomm.nn.parallel import DataParallel

WORDS = 10_000

gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
devices = gpus or [torch.device("cpu")] * 2  # without GPUs two replicas on the CPU

torch.manual_seed(0)
embedding = nn.Embedding(WORDS, 32, sparse=True)
rest = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4)).to(devices[0])
parallel = DataParallel(rest, devices)
optimizers: list[torch.optim.Optimizer] = [
    torch.optim.SparseAdam(embedding.parameters(), lr=0.01),
    torch.optim.Adam(rest.parameters(), lr=0.01),
]

texts = torch.randint(WORDS, (64, 12))
labels = torch.randint(4, (64,))
losses = []
for _ in range(5):
    output = parallel(embedding(texts).mean(1))  # the rows are sent from the CPU
    loss = nn.functional.cross_entropy(output, labels.to(devices[0]))
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    losses.append(loss.item())

gradient = embedding.weight.grad
assert gradient is not None
rows = len(gradient.coalesce().values())
print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")
print(f"{gradient.layout} gradient on {gradient.device}: {rows} of {WORDS} rows")

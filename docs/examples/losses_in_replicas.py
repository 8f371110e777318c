"""Each replica computes its own loss: outputs, which may be large, stay where they are.

    python docs/examples/losses_in_replicas.py

docs/data-parallel.md says for which losses their mean is that of the whole batch.
"""

from __future__ import annotations

import torch
from torch import nn

from fastcomm.nn.parallel import DataParallel, DataParallelCriterion

gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
devices = gpus or [torch.device("cpu")] * 2  # without GPUs two replicas on the CPU

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1000)).to(devices[0])
x, targets = torch.randn(32, 16), torch.randint(1000, (32,))

# The loss goes into the wrapper, and the targets are the last argument.
parallel = DataParallel(model, devices, loss_fn=nn.functional.cross_entropy)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
for _ in range(5):
    optimizer.zero_grad()
    parallel(x, targets).mean().backward()  # of a loss for each replica
    optimizer.step()

# Or the outputs come back as a list, and the loss is computed where each of them is.
outputs = DataParallel(model, devices, gather_outputs=False)(x)
assert [output.device for output in outputs] == devices
losses = DataParallelCriterion(nn.CrossEntropyLoss())(outputs, targets)

whole = nn.functional.cross_entropy(model(x.to(devices[0])), targets.to(devices[0]))
print(f"after five steps: in the replicas {losses.mean():.4f}, of the whole batch {whole:.4f}")

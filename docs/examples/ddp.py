"""DistributedDataParallel: each rank trains on its part of the rows, on a GPU or on the CPU.

    torchrun --nproc-per-node 2 docs/examples/ddp.py
    fastcomm run --nproc 2 docs/examples/ddp.py  # the same without torchrun

On two machines the same script is started on each of them; HOST0 is the name of one of them:

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 ddp.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

device = torch.device("cpu")
if gpus := torch.accelerator.device_count():
    device = torch.device(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.accelerator.set_device_index(device)
dist.init_process_group("fastcomm")

torch.manual_seed(0)
x = torch.randn(256, 16)
rows = TensorDataset(x, x.sum(1, keepdim=True) / 4)
sampler: DistributedSampler = DistributedSampler(rows)
batches = DataLoader(rows, batch_size=16, sampler=sampler)
layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    loss = nn.functional.mse_loss(layers(x.to(device)), rows.tensors[1].to(device))
print(f"rank {dist.get_rank()}: loss of all rows {loss:.6f}")
dist.destroy_process_group()

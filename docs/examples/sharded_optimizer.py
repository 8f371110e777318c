"""An optimizer divided among the ranks (ZeRO), with autocast, a loss scale, clipping, accumulation.

    torchrun --nproc-per-node 2 docs/examples/sharded_optimizer.py

The model is not wrapped: step() reduces each rank's rows of the gradients, unscales and clips them,
steps on them, and gathers the weights. A rank has its part of AdamW's state only. Torch's own
GradScaler would be refused.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn

import fastcomm

device = torch.device("cpu")
if gpus := torch.accelerator.device_count():
    device = torch.device(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.accelerator.set_device_index(device)
dist.init_process_group("fastcomm")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
optimizer = fastcomm.optim.ShardedOptimizer(
    model.parameters(), torch.optim.AdamW, lr=0.01, max_norm=1.0
)
scaler = fastcomm.amp.GradScaler(device.type, init_scale=1024.0)
for _ in range(20):
    optimizer.zero_grad()
    for x in torch.randn(2, 32 * ranks, 16).to(device):  # two batches a step
        mine = x.chunk(ranks)[rank]
        with torch.autocast(device.type, torch.float16):
            loss = nn.functional.mse_loss(model(mine), mine.sum(1, keepdim=True) / 4)
        scaler.scale(loss / 2).backward()
    scaler.step(optimizer)
    scaler.update()
weights = sum(p.sum().item() for p in model.parameters())
print(f"rank {rank}: weights sum to {weights:.2f}, scale {scaler.get_scale():g}")
dist.destroy_process_group()

"""FSDP2: each rank keeps its part of the weights, gradients and optimizer's state.

    torchrun --nproc-per-node 2 docs/examples/fsdp.py

With GPUs, `model.set_allocate_memory_from_process_group_for_comm(True)` has what is sent in
fastcomm's memory (docs/gpus.md).
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

device = torch.device("cpu")
if gpus := torch.accelerator.device_count():
    device = torch.device(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.accelerator.set_device_index(device)
dist.init_process_group("fastcomm")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
mesh = init_device_mesh(device.type, (ranks,))
for module in [layer for layer in model if isinstance(layer, nn.Linear)] + [model]:
    fully_shard(module.to(device), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(20):
    x = torch.randn(32 * ranks, 16).chunk(ranks)[rank].to(device)
    loss = nn.functional.mse_loss(model(x), x[:, :4])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
dist.all_reduce(loss)
parts = [p for p in model.parameters() if isinstance(p, DTensor)]
kept, all_of_them = (sum(map(torch.numel, each)) for each in ([p.to_local() for p in parts], parts))
print(f"rank {rank}: {kept} of {all_of_them} weights, loss {loss / ranks:.5f}")
dist.destroy_process_group()

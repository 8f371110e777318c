"""A pipeline: each rank has some of the layers, and micro-batches go from one rank to the next.

    torchrun --nproc-per-node 2 docs/examples/pipeline.py

The loss is that of the model in one piece, with two to six ranks. Schedule1F1B takes no fewer
micro-batches than ranks.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

device = torch.device("cpu")
if gpus := torch.accelerator.device_count():
    device = torch.device(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.accelerator.set_device_index(device)
dist.init_process_group("fastcomm")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)]
first, end = rank * 6 // ranks, (rank + 1) * 6 // ranks
mine = nn.Sequential(*layers[first:end]).to(device)
stage = PipelineStage(mine, rank, ranks, device)
schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(mine.parameters(), lr=0.5)
for _ in range(10):
    x = torch.randn(32, 16).to(device)  # the same on all ranks
    inputs = [x] if stage.is_first else []
    losses: list[torch.Tensor] = []
    wanted = {"target": x.roll(1, 1).tanh(), "losses": losses} if stage.is_last else {}
    optimizer.zero_grad()
    schedule.step(*inputs, **wanted)
    optimizer.step()
loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
dist.broadcast(loss, ranks - 1)
print(f"rank {rank}: loss {loss:.6f}")
dist.destroy_process_group()

"""A model divided in three ways at once: pipeline, data parallel and tensor parallel.

    torchrun --nproc-per-node 8 docs/examples/three_ways.py

Two stages, in each two copies that share a batch, each copy cut over two ranks. FSDP2 keeps the
copies alike, with half of a copy's weights on each rank: DDP takes no tensors that are cut already.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = torch.device("cpu")
if gpus := torch.accelerator.device_count():
    device = torch.device(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.accelerator.set_device_index(device)
dist.init_process_group("fastcomm")
mesh = init_device_mesh(device.type, (2, 2, 2), mesh_dim_names=("stage", "copy", "part"))
stage_number, copy, _ = mesh.get_coordinate()

torch.manual_seed(0)
layers = [(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16), nn.Tanh()) for _ in range(2)]
mine = nn.Sequential(*layers[stage_number]).to(device)
parallelize_module(mine, mesh["part"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(mine, mesh=mesh["copy"])
stage = PipelineStage(mine, stage_number, 2, device, group=mesh.get_group("stage"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(mine.parameters(), lr=0.5)
for _ in range(10):
    x = torch.randn(32, 16).chunk(2)[copy].to(device)
    losses: list[torch.Tensor] = []
    wanted = {"target": x.roll(1, 1).tanh(), "losses": losses} if stage.is_last else {}
    optimizer.zero_grad()
    schedule.step(*([x] if stage.is_first else []), **wanted)
    optimizer.step()
loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
dist.all_reduce(loss)  # over the four ranks of the last stage
print(f"rank {dist.get_rank()}: loss {loss / 4:.5f}")
dist.destroy_process_group()

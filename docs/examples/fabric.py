"""Train with Lightning Fabric over fastcomm.

    torchrun --nproc-per-node 2 docs/examples/fabric.py

Fabric forms the group; its strategy has the name.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy

strategy = DDPStrategy(process_group_backend="fastcomm")
fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
fabric.launch()
fabric.seed_everything(0, verbose=False)
model = torch.nn.Linear(8, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
torch.manual_seed(fabric.global_rank)
for _ in range(3):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    fabric.backward((model(x) - x.sum(1, keepdim=True)).square().mean())
    optimizer.step()
total = fabric.all_reduce(model.module.weight.sum(), reduce_op="sum").item()
print(f"rank {fabric.global_rank}: {dist.get_backend()}, weights {total:.6f}")

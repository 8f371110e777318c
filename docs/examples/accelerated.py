"""Train with Accelerate over fastcomm: one line forms the group before.

    torchrun --nproc-per-node 2 docs/examples/accelerated.py

The rest is as Accelerate's own documents have it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("fastcomm")  # this line
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
x = torch.randn(64, 8)
rows = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
for inputs, targets in rows:
    with accelerator.accumulate(model):
        accelerator.backward(mse_loss(model(inputs), targets))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
with torch.no_grad():
    outputs = [accelerator.gather_for_metrics(model(inputs)) for inputs, _ in rows]
print(f"rank {accelerator.process_index}: {dist.get_backend()}, {torch.cat(outputs).mean():.6f}")
accelerator.end_training()

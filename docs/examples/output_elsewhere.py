"""The output lies on a device that has no replica, and so does what is computed of it.

    python docs/examples/output_elsewhere.py

So the device of the first replica needs no more room than the others do.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from fastcomm.nn.parallel import DataParallel

cpu = torch.device("cpu")
gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
# The last GPU where there are three or more, else the CPU, whose slots also make up for GPUs.
*devices, elsewhere = gpus if len(gpus) > 2 else [*gpus, cpu, cpu, cpu][:3]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64)).to(devices[0])
head = nn.Linear(64, 1).to(elsewhere)
alone = copy.deepcopy(nn.Sequential(model, head)).to(cpu)
parallel = DataParallel(model, devices, output_device=elsewhere)

x = torch.randn(32, 16)
output = parallel(x)
assert output.device == elsewhere
loss = head(output).square().mean()
loss.backward()  # its gradients go back to the replicas
wanted = alone(x).square().mean()
wanted.backward()

norm = torch.nn.utils.get_total_norm(p.grad for p in model.parameters())
norm_alone = torch.nn.utils.get_total_norm(p.grad for p in alone[0].parameters())
print(f"loss on {loss.device}: {loss:.4f}, of one device {wanted:.4f}")
print(f"norm of gradients on {norm.device}: {norm:.4f}, of one device {norm_alone:.4f}")

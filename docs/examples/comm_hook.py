"""A communication hook of one's own for DDP: gradients travel as bfloat16.

    torchrun --nproc-per-node 2 docs/examples/comm_hook.py

fastcomm sums 16-bit numbers in fp32 and rounds once. Its own hook does this in one pass, with the
norm: `fastcomm.nn.parallel.DistributedDataParallel(model, comm_dtype=torch.bfloat16)`.
"""

# No "from __future__ import annotations": DDP compares a hook's annotations with the types.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = torch.device("cpu")
if gpus := torch.accelerator.device_count():
    device = torch.device(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.accelerator.set_device_index(device)
dist.init_process_group("fastcomm")


def hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return the mean of a bucket's gradients over the ranks, once it is there."""
    gradients = bucket.buffer()
    work = dist.all_reduce(gradients.bfloat16(), group=group, async_op=True)

    def unpack(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return gradients.copy_(done.value()[0]).div_(group.size())

    return work.get_future().then(unpack)


torch.manual_seed(rank := dist.get_rank())  # DDP gives all ranks the weights of rank 0
layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(layers)
model.register_comm_hook(dist.group.WORLD, hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    x = torch.randn(32, 16).to(device)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 4).backward()
    optimizer.step()
print(f"rank {rank}: weights sum to {sum(p.sum().item() for p in model.parameters()):.6f}")
dist.destroy_process_group()

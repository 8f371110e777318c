"""Tokens of a small transformer that is cut over the ranks: heads, and the width of the MLP.

    torchrun --nproc-per-node 2 docs/examples/tensor_parallel_decode.py

Each layer has two sums over the ranks, by the operator that torch.compile traces, too. Where a sum
is always of the same tensor, `fastcomm.prepare` takes half the time (docs/frameworks/decoding.md).
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn import functional as F

device = torch.device("cpu")
if gpus := torch.accelerator.device_count():
    device = torch.device(int(os.environ["LOCAL_RANK"]) % gpus)
    torch.accelerator.set_device_index(device)
dist.init_process_group("fastcomm")
rank, ranks, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name

torch.manual_seed(0)
LAYERS, WIDTH, HEAD = 2, 32, 8
words, head = torch.randn(2, 100, WIDTH).to(device)
shapes = (3, WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)
cut = list(zip(shapes, (1, 1, 0, 1), strict=True))  # the dimension that is divided
parts = [
    [torch.randn(shape).chunk(ranks, dim)[rank].to(device) / shape[-1] ** 0.5 for shape, dim in cut]
    for _ in range(LAYERS)
]
past: list[list[torch.Tensor]] = [[] for _ in parts]
tokens = [0]
for _ in range(12):
    x = words[tokens[-1]]
    for (qkv, out, up, down), seen in zip(parts, past, strict=True):
        query, key, value = (qkv @ F.rms_norm(x, (WIDTH,))).view(3, -1, 1, HEAD)
        seen.append(torch.stack((key, value)))
        keys, values = torch.cat(seen, 2)
        partial = out @ F.scaled_dot_product_attention(query, keys, values).flatten()
        torch.ops.fastcomm.all_reduce_(partial, name)
        x = x + partial
        partial = down @ F.gelu(up @ F.rms_norm(x, (WIDTH,)))
        torch.ops.fastcomm.all_reduce_(partial, name)
        x = x + partial
    tokens.append(int((head @ x).argmax()))
print(f"rank {rank}: tokens {tokens[1:]}")
dist.destroy_process_group()

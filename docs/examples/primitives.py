"""The primitives below DataParallel, each alone, beside what torch's operators give.

    python docs/examples/primitives.py

Between processes `fastcomm bench --ops scatter,gather,broadcast,fused_all_reduce` measures theirs.
"""

from __future__ import annotations

import torch

from fastcomm import comm

gpus = [torch.device(i) for i in range(torch.accelerator.device_count())]
devices = gpus or [torch.device("cpu")] * 2  # without GPUs two slots of the CPU
first = devices[0]
equal = {}

# The rows "scatter" and "gather" of benchmarks/single_process.py.
batch = torch.arange(1024.0, device=first).view(-1, 4)
chunks = comm.scatter(batch, devices)
parts = zip(chunks, batch.chunk(len(devices)), devices, strict=True)
equal["scatter"] = all(torch.equal(chunk, part.to(device)) for chunk, part, device in parts)
equal["gather"] = torch.equal(comm.gather(chunks, destination=first), batch)

# The rows "broadcast_coalesced" of benchmarks/single_process.py.
tensors = [torch.full((i, 3), float(i), device=first) for i in range(1, 200)]
lists = comm.broadcast_coalesced(tensors, devices)
pairs = [(a, b) for values in lists for a, b in zip(values, tensors, strict=True)]
equal["broadcast_coalesced"] = all(torch.equal(a, b.to(a.device)) for a, b in pairs)

# The rows "reduce_add_coalesced" of the same.
sums = comm.reduce_add_coalesced(lists, first)
wanted = [tensor * len(devices) for tensor in tensors]
equal["reduce_add_coalesced"] = all(map(torch.equal, sums, wanted))

# The rows of benchmarks/fused_reduce_cuda.py: mean, norm and a search for inf and NaN in one pass.
means, result = comm.fused_reduce_add_coalesced(lists, average=True)
norm = torch.nn.utils.get_total_norm(tensors)
assert result.total_norm is not None
torch.testing.assert_close(result.total_norm, norm)
equal["fused_reduce_add_coalesced"] = all(map(torch.equal, means, tensors))
print("as torch:", ", ".join(name for name, same in equal.items() if same))
print(f"norm {result.total_norm:.1f}, inf or NaN: {bool(result.found_inf)}")

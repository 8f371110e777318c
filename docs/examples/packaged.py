"""Compile a layer with a collective ahead of time; each rank runs the package.

    torchrun --nproc-per-node 2 docs/examples/packaged.py

docs/frameworks/decoding.md says where a package runs.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


class RowParallel(torch.nn.Module):
    """A linear layer of which each rank has some rows."""

    def __init__(self, weight: torch.Tensor, group_name: str) -> None:
        """Hold this rank's rows."""
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.group_name = group_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' products, without what is negative."""
        partial = x @ self.weight
        torch.ops.fastcomm.all_reduce_(partial, self.group_name)
        return partial.relu()


dist.init_process_group("fastcomm")  # before a package is loaded: the operators come with it
torch.manual_seed(dist.get_rank())
layer = RowParallel(torch.randn(8, 4), dist.group.WORLD.group_name)
x = torch.randn(2, 8)
if dist.get_rank() == 0:  # tracing calls no other rank
    exported = torch.export.export(layer, (x,))
    torch._inductor.aoti_compile_and_package(exported, package_path="layer.pt2")
dist.barrier()
package = torch._inductor.aoti_load_package("layer.pt2")
package.load_constants({"weight": layer.weight}, check_full_update=True)  # this rank's
torch.testing.assert_close(package(x), layer(x))
print(f"rank {dist.get_rank()}: {package(x).shape}")
dist.destroy_process_group()

"""Attention over a sequence divided among ranks: keys and values go round, or are gathered.

torch's own ring attention has no CPU kernel, not even over Gloo; what cuts the sequence and puts it
together again is torch's.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from support.alike import Near, run_alike
from support.ranks import World
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn.functional import scaled_dot_product_attention

Tensors = list[torch.Tensor]


def _next(world: World, both: torch.Tensor) -> torch.Tensor:
    """Pass keys and values to one neighbour, and take the other's, in one batch."""
    arrived = torch.empty_like(both)
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    sent = dist.P2POp(dist.isend, both, after)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, arrived, before)]):
        work.wait()
    return arrived


def _ring(world: World, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Weight each part's attention by its logarithm of the sum of exponentials."""
    both, outs, weights = torch.stack([k, v]), [], []
    for turn in range(world.size):
        scores = q @ both[0].transpose(-1, -2) / math.sqrt(q.shape[-1])
        outs.append(scores.softmax(-1) @ both[1])
        weights.append(scores.logsumexp(-1, keepdim=True))
        if turn < world.size - 1:
            both = _next(world, both)
    shares = torch.stack(weights).softmax(0)
    return (torch.stack(outs) * shares).sum(0)


def _in_parts(world: World, way: str) -> Tensors:
    torch.manual_seed(5)
    whole = [torch.randn(2, 3, 4 * world.size, 8, requires_grad=True) for _ in range(3)]
    wanted = scaled_dot_product_attention(*whole)
    wanted.square().sum().backward()
    mesh = init_device_mesh("cpu", (world.size,))
    parts: list[Any] = [x.detach().clone() for x in whole]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
        mine = [part.clone().requires_grad_() for part in parts]
        if way == "ring":
            out, gradients = _ring(world, *mine).detach(), []
        else:
            k, v = (funcol.all_gather_tensor_autograd(x, 2, mesh) for x in mine[1:])
            found = scaled_dot_product_attention(mine[0], k, v)
            found.square().sum().backward()
            out, gradients = found.detach(), [x.grad for x in mine]
    together = context_parallel_unshard(mesh, [out, *gradients], [2] * (1 + len(gradients)))
    expected = [wanted.detach(), *(x.grad for x in whole)]
    for ours, theirs in zip(together, expected, strict=False):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    return list(together)


@pytest.mark.parametrize("way", ["ring", "gathered"])
@pytest.mark.parametrize("size", [2, 4])
def test_attention_is_that_of_one_process(size: int, way: str) -> None:
    run_alike(size, _in_parts, way, near=Near(1e-4, 1e-5))

"""Gradients that go through the host's memory, with CPU tensors in place of a device's.

What only a device can show is in tests/gpu/test_ddp.py.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World
from torch import nn

import fastcomm
from fastcomm._devices import host as _host


def _lists(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    made = [torch.randn(shape, generator=generator) for shape in ((3, 5), (4097,), (), (0,))]
    made.append(torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last))
    made.append(torch.randn(6, 4, generator=generator)[:, ::2])
    made.append(torch.randn(9, dtype=torch.complex64, generator=generator).conj())
    return [*made, made[1].half(), made[0].double()]


@on_ranks(2, environments=TRANSPORTS)
def test_the_bits_are_those_of_gradients_on_the_cpu(world: World) -> None:
    world.init()
    mixed, here = _lists(world.rank), _lists(world.rank)
    wanted = fastcomm.fused_all_reduce_(here)
    plain = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    ours = fastcomm.nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    ours.load_state_dict(plain.state_dict())
    _host._is_elsewhere = lambda tensor: tensor.layout == torch.strided and tensor.dim() != 1
    copies = _host.copies_of(mixed)
    assert sum(copy is not own for copy, own in zip(copies, mixed, strict=True)) == 5
    found = fastcomm.fused_all_reduce_(mixed, async_op=True)
    assert found.work is None
    for a, b in zip(mixed, here, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
    assert (
        torch.equal(found.partial_norms, wanted.partial_norms)
        and found.total_norm == wanted.total_norm
    )
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(world.rank))
    for ddp in (plain, ours):
        ddp(x).square().sum().backward()
    for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
    _host._is_elsewhere = lambda tensor: tensor.layout == torch.strided
    for grads, words in (
        ([torch.ones(1).expand(5)], "overlaps itself"),
        ([torch.ones(3, dtype=torch.int32)], "not floating-point"),
        ([torch.eye(3).to_sparse()], "gradient 0 is Sparse"),
    ):
        with pytest.raises(ValueError, match=words):
            fastcomm.fused_all_reduce_(grads)
    dist.barrier()

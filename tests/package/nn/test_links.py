"""Devices that do not reach each other's memory: everything is right, through the host's.

The devices are simulated: each test runs its own process, whose devices have such links.
"""

from __future__ import annotations

import copy

import pytest
import sim
import torch
from support.on_ranks import on_ranks
from support.ranks import World
from support.tree import same_bits, tree_sum
from support.values import FLOATS, cancelling
from torch import nn

from fastcomm import comm
from fastcomm.nn.parallel import DataParallel

pytestmark = pytest.mark.usefixtures("simulated")

LINKS = {
    "no access": {"SIM_LINKS": "0-1 none"},
    "none at all": {"SIM_LINKS": "0-1 none, 0-2 none, 0-3 none, 1-2 none, 1-3 none, 2-3 none"},
    "wrong bits": {"SIM_LINKS": "0-1 reads, 2-3 writes, 1-2 none"},
    "an allocator that maps nothing": {"SIM_UNMAPPED": "0-1, 1-2"},
    "switched off": {"FASTCOMM_PEER_ACCESS": "off"},
}
DEVICES = [0, 1, 2, 3, 1]
Lists = list[list[torch.Tensor]]


def _spread(dtypes: list[torch.dtype], sizes: list[int]) -> tuple[Lists, Lists]:
    """Return a list of tensors for each device, on the CPU and there; the types take turns."""
    sim.load()
    lists = [
        [cancelling(dtypes[i % len(dtypes)], n, rank, i) for i, n in enumerate(sizes)]
        for rank in range(len(DEVICES))
    ]
    there = [[v.to(f"sim:{at}") for v in values] for values, at in zip(lists, DEVICES, strict=True)]
    return lists, there


@on_ranks(1, environments=LINKS)
def test_copies_and_sums(_: World) -> None:
    dtypes = [*FLOATS, torch.int64, torch.bool]
    # The last one is larger than what is staged at a time.
    sizes = [0, 1, 4097, 70_001, 300, 5, 1_500_000]
    lists, there = _spread(dtypes, sizes)
    for target in (0, 3):
        sums = comm.reduce_add_coalesced(there, target)
        for total, *terms in zip(sums, *lists, strict=True):
            assert total.get_device() == target and same_bits(total.cpu(), tree_sum(terms))
    copies = comm.broadcast_coalesced(there[1], [DEVICES[1], 0, 3, 2, 1])
    for values in copies:
        for value, source in zip(values, lists[1], strict=True):
            assert same_bits(value.cpu(), source)
    joined = comm.gather([values[3] for values in there], 0, 2)
    assert same_bits(joined.cpu(), torch.cat([values[3] for values in lists]))


@on_ranks(1, environments=LINKS)
def test_fused_sums_and_norms(_: World) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    sizes = [0, 1, 4097, 70_001, 300, 9001]
    lists, there = _spread(dtypes, sizes)
    for wire in (None, torch.bfloat16):
        sums, found = comm.fused_reduce_add_coalesced(
            there, average=True, scale=0.25, comm_dtype=wire, norm_type=2.0
        )
        wanted, result = comm.fused_reduce_add_coalesced(
            lists, average=True, scale=0.25, comm_dtype=wire, norm_type=2.0
        )
        assert all(same_bits(a.cpu(), b) for a, b in zip(sums, wanted, strict=True))
        assert same_bits(found.partial_norms.cpu(), result.partial_norms)
        assert found.total_norm is not None and result.total_norm is not None
        assert same_bits(found.total_norm.cpu(), result.total_norm)
        assert found.found_inf.item() == 0


@on_ranks(1, environments=LINKS)
def test_training(_: World) -> None:
    sim.load()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Linear(40, 3))
    models = [copy.deepcopy(net), net.to("sim:0")]
    parallels = [
        DataParallel(models[0], ["cpu"] * 5, buffers="sync_batchnorm"),
        DataParallel(models[1], DEVICES, buffers="sync_batchnorm"),
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _step in range(3):
        x = torch.randn(20, 6)
        for parallel, optimizer in zip(parallels, optimizers, strict=True):
            optimizer.zero_grad()
            parallel(x).square().mean().backward()
            optimizer.step()
    for here, away in zip(models[0].state_dict().values(), net.state_dict().values(), strict=True):
        assert same_bits(away.cpu(), here)

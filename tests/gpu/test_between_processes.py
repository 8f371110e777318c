"""Tensors on the devices of several processes, as users have them; two of these may share a device.

Bits are compared with CPU ranks where they are the collectives' own; trained weights, which also
come from the device's products, closely.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import places
from support.direct import check_bits, is_direct, small_net, train
from support.ranks import World, run_ranks
from support.tree import same_bits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import fastcomm

pytestmark = pytest.mark.accelerator

# Several rounds for the longer messages, one launch for a few.
SMALL = {"FASTCOMM_WINDOW_BYTES": "65536", "FASTCOMM_ONE_SHOT_BYTES": "1024"}


def _joined(world: World, kind: str) -> torch.device:
    """Join, and agree on what serves the devices."""
    places.join(kind)
    module = torch.get_device_module(kind)
    device = torch.device(kind, world.rank % module.device_count())
    module.set_device(device)
    world.init("fastcomm" if kind == "cuda" else f"cpu:fastcomm,{kind}:fastcomm")
    if kind != "cuda":  # since "fastcomm" alone is for "cpu" and "cuda"
        dist.group.WORLD._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    data = torch.ones(1, device=device)
    dist.all_reduce(data)
    assert is_direct(data), fastcomm.explain("all_reduce", data).reason
    return device


def _placed(tensor: torch.Tensor) -> torch.Tensor:
    there = fastcomm.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    assert fastcomm.is_shared(there)
    return there.copy_(tensor)


def _bits(world: World, kind: str) -> None:
    device = _joined(world, kind)
    for dtype in (torch.float32, torch.bfloat16):
        for count in (6, 2049, 20_000):
            check_bits(world, device, dtype, count)
            check_bits(world, device, dtype, count, _placed)


def test_every_operation_has_the_bits_of_the_cpu() -> None:
    run_ranks(2, _bits, places.kind(), environment=SMALL)


def _close(net: nn.Module, given: nn.Module) -> list[torch.Tensor]:
    """Compare weights, which may be sharded; return whole ones."""
    found = []
    for there, here in zip(net.parameters(), given.parameters(), strict=True):
        data: Any = there.detach()
        whole = (data.full_tensor() if hasattr(data, "full_tensor") else data).cpu()
        torch.testing.assert_close(whole, here.detach(), rtol=1e-4, atol=1e-5)
        found.append(whole)
    return found


def _on_the_cpu(world: World) -> nn.Module:
    net = small_net()
    train(world, nn.parallel.DistributedDataParallel(net), torch.device("cpu"))
    return net


def _note(buckets, bucket):  # torch would refuse annotations that are strings
    buckets.append(fastcomm.is_shared(bucket.buffer()))
    return allreduce_hook(None, bucket)


def _ddp(world: World, kind: str) -> list[torch.Tensor]:
    """Train stock DDP, whose buckets lie where all have mapped them, and fastcomm's."""
    device = _joined(world, kind)
    wanted = _on_the_cpu(world)
    net = small_net().to(device)
    stock = nn.parallel.DistributedDataParallel(net, [device], gradient_as_bucket_view=True)
    buckets: list[bool] = []
    stock.register_comm_hook(buckets, _note)
    train(world, stock, device)
    assert len(buckets) > 3 and all(buckets), buckets
    ours = small_net().to(device)
    fused = fastcomm.nn.parallel.DistributedDataParallel(ours, [device], max_norm=100.0)
    train(world, fused, device)
    assert fused.result().found_inf.item() == 0
    return [*_close(net, wanted), *_close(ours, wanted)]


def _fsdp(world: World, kind: str) -> list[torch.Tensor]:
    """Train stock FSDP2, with the group's memory for what it moves."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    device = _joined(world, kind)
    wanted = _on_the_cpu(world)
    net = small_net().to(device)
    mesh = init_device_mesh(kind, (world.size,))
    for layer in [*(layer for layer in net if isinstance(layer, nn.Linear)), net]:
        fully_shard(layer, mesh=mesh)
        assert isinstance(layer, FSDPModule)
        layer.set_allocate_memory_from_process_group_for_comm(True)
    train(world, net, device)
    return _close(net, wanted)


def _sharded(world: World, kind: str) -> list[torch.Tensor]:
    """Train with an optimizer whose state is divided, and 16 bits between the ranks."""
    device = _joined(world, kind)
    nets = [small_net(), small_net().to(device)]
    for net in nets:
        optimizer = fastcomm.optim.ShardedOptimizer(
            net.parameters(), torch.optim.Adam, lr=0.01, max_norm=0.5, comm_dtype=torch.bfloat16
        )
        for step in range(3):
            torch.manual_seed(10 * step + world.rank)
            optimizer.zero_grad()
            net(torch.randn(5, 6).to(next(net.parameters()).device)).square().mean().backward()
            optimizer.step()
    # A difference in the products' last bit may round to another neighbour in 16 bits.
    for there, here in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        torch.testing.assert_close(there.detach().cpu(), here.detach(), rtol=2e-2, atol=2e-3)
    return [parameter.detach().cpu() for parameter in nets[1].parameters()]


@pytest.mark.parametrize("trained", [_ddp, _fsdp, _sharded], ids=lambda each: each.__name__[1:])
def test_trained_weights_are_equal_on_all_ranks(trained: Any) -> None:
    first, second = run_ranks(2, trained, places.kind(), environment=SMALL)
    assert all(map(same_bits, first, second))


def _graph(world: World, kind: str) -> None:
    """Capture a sum in place and a fused reduction, and replay them among other calls."""
    device = _joined(world, kind)
    static = fastcomm.empty(3000, device=device)
    grads = [torch.zeros(900, device=device), torch.zeros(5, device=device)]
    fastcomm.fused_all_reduce_(grads)
    module = torch.get_device_module(kind)
    stream = module.Stream(device)
    module.synchronize()
    with places.graph(stream) as graph:
        dist.all_reduce(static)
        found = fastcomm.fused_all_reduce_(grads)
    with module.stream(stream):
        for turn in range(20):
            static.fill_(float(turn + world.rank))
            for grad in grads:
                grad.fill_(float(turn + world.rank))
            graph.replay()
            eager = torch.full((4000,), float(turn), device=device)
            dist.all_reduce(eager)
            assert static.unique().tolist() == [2.0 * turn + 1]
            assert grads[0].unique().tolist() == grads[1].unique().tolist() == [turn + 0.5]
            assert eager.unique().tolist() == [2.0 * turn] and found.found_inf.item() == 0
    module.synchronize()


def test_graphs_are_replayed_between_eager_calls() -> None:
    run_ranks(2, _graph, places.kind(), environment=SMALL)

"""Tensors on the devices of several processes, as users have them; two of these may share a device.

Bits are compared with CPU ranks: those of the collectives on any device, and trained weights on
simulated ones. On a GPU weights also come from the device's products, and are compared closely.
"""

from __future__ import annotations

import itertools
import math
from datetime import timedelta
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support import places
from support.direct import (
    Place,
    check_bits,
    joined_on,
    note_bucket,
    plain,
    shared,
    small_net,
    train,
    weights,
)
from support.patience import until
from support.ranks import World, run_ranks
from support.tree import same_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastcomm
from fastcomm import distributed

pytestmark = pytest.mark.accelerator

# Several rounds for the longer messages, one launch for a few.
SMALL = {"FASTCOMM_WINDOW_BYTES": "65536", "FASTCOMM_ONE_SHOT_BYTES": "1024"}


PLACES: list[Place] = [plain, shared]


def _bits(world: World, kind: str) -> None:
    device = joined_on(world, kind)
    every = [*itertools.product((torch.float32, torch.bfloat16), (6, 2049, 20_000), PLACES)]
    # On simulated devices every two together: tests/c10d/test_device_tensors.py has more.
    for dtype, count, place in every if kind != "sim" else [every[i] for i in (1, 2, 6, 9, 4, 11)]:
        check_bits(world, device, dtype, count, place)


def test_every_operation_has_the_bits_of_the_cpu() -> None:
    run_ranks(2, _bits, places.kind(), environment=SMALL)


def _alike(models: list[nn.Module], loose: bool = False) -> list[torch.Tensor]:
    """Compare the weights of a model on the CPU and one on a device; return them."""
    here, there = map(weights, models)
    for found, wanted in zip(there, here, strict=True):
        places.ACCELERATOR.check_alike(found, wanted, loose)
    return there


def _place(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _ddp(world: World, kind: str) -> list[torch.Tensor]:
    """Train stock DDP, whose buckets lie where all have mapped them."""
    device = joined_on(world, kind)
    nets = [small_net(), small_net().to(device)]
    for net in nets:
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.004, gradient_as_bucket_view=True)
        buckets: list[bool] = []
        ddp.register_comm_hook(buckets, note_bucket)
        train(world, ddp, _place(net))
        assert len(buckets) > 4 and all(buckets), buckets
    return _alike(nets)


MODES: list[dict[str, Any]] = [
    {},
    {"comm_dtype": torch.bfloat16, "error_feedback": True, "gradient_as_bucket_view": True},
    {"max_norm": 0.01, "bucket_cap_mb": 0.004},
    {"max_norm": 100.0},
]


def _fused(world: World, kind: str) -> list[torch.Tensor]:
    """Train fastcomm's DDP, through torch's reducer, whose hook gets a future of a device."""
    device = joined_on(world, kind)
    found = []
    for mode in MODES:
        nets, norms = [small_net(), small_net().to(device)], []
        for net in nets:
            ddp = fastcomm.nn.parallel.DistributedDataParallel(net, **mode)
            train(world, ddp, _place(net))
            result = ddp.result()
            assert result.total_norm is not None and result.found_inf.item() == 0
            norms.append(result.total_norm.item())
        loose = "comm_dtype" in mode
        assert norms[0] == norms[1] or (kind != "sim" and math.isclose(*norms, rel_tol=2e-2))
        found += _alike(nets, loose)
    return found


# By torch's version.
FSDP_CALLS = {
    "all_gather": ("all_gather_single", "all_gather_into_tensor"),
    "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
}


def _spied(kind: str) -> set[tuple[str, bool]]:
    """Return a set for what operations on devices are given, and whether all have it mapped."""
    seen: set[tuple[str, bool]] = set()

    def spy(operation: str, stock: Any) -> Any:
        def noted(
            output: torch.Tensor, input: torch.Tensor, *rest: object, **options: object
        ) -> None:
            if output.device.type == kind:
                seen.add((operation, fastcomm.is_shared(input)))
            return stock(output, input, *rest, **options)

        return noted

    for operation, names in FSDP_CALLS.items():
        for name in names:
            if hasattr(dist, name):
                setattr(dist, name, spy(operation, getattr(dist, name)))
    return seen


def _fsdp(world: World, kind: str) -> list[torch.Tensor]:
    """Train stock FSDP2, without the group's memory for what it moves, and with it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    device = joined_on(world, kind)
    seen, found = _spied(kind), []
    for allocates in (False, True):
        nets = [small_net(), small_net().to(device)]
        for net in nets:
            mesh = init_device_mesh(_place(net).type, (world.size,))
            for layer in [*(layer for layer in net if isinstance(layer, nn.Linear)), net]:
                fully_shard(layer, mesh=mesh)
                assert isinstance(layer, FSDPModule)
                layer.set_allocate_memory_from_process_group_for_comm(allocates)
            seen.clear()
            train(world, net, _place(net))
        assert seen == {("all_gather", allocates), ("reduce_scatter", allocates)}, seen
        found += _alike(nets)
    return found


def _sharded(world: World, kind: str) -> list[torch.Tensor]:
    """Train with an optimizer whose state is divided, and 16 bits between the ranks."""
    device = joined_on(world, kind)
    broadcast, found = dist.broadcast, []
    narrow = {"comm_dtype": torch.bfloat16, "max_norm": 0.05, "skip_nonfinite": True}
    for options in ({}, narrow):
        nets, norms = [small_net(), small_net().to(device)], []
        for net in nets:
            optimizer = fastcomm.optim.ShardedOptimizer(
                net.parameters(), torch.optim.Adam, lr=0.01, **options
            )
            dist.broadcast = None  # not one by one
            for step in range(3):
                torch.manual_seed(10 * step + world.rank)
                optimizer.zero_grad()
                net(torch.randn(5, 6).to(_place(net))).square().mean().backward()
                optimizer.step()
            dist.broadcast = broadcast
            assert optimizer.result is not None and optimizer.result.total_norm is not None
            norms.append(optimizer.result.total_norm.item())
            optimizer.load_state_dict(optimizer.state_dict())
        assert norms[0] == norms[1] or (kind != "sim" and math.isclose(*norms, rel_tol=2e-2))
        # A difference in the products' last bit may round to another neighbour in 16 bits.
        found += _alike(nets, loose=True)
    with pytest.raises(ValueError, match="not on one device"):
        both = [torch.zeros(3, requires_grad=True), torch.zeros(3, device=device)]
        fastcomm.optim.ShardedOptimizer(both, torch.optim.SGD, lr=0.1)
    return found


# Simulated devices have the bits of two ranks in the tests of each operation already.
TWO = pytest.param(2, marks=[pytest.mark.release] * sim.loaded())


@pytest.mark.parametrize("size", [TWO, 3])
@pytest.mark.parametrize(
    "trained", [_ddp, _fused, _fsdp, _sharded], ids=lambda each: each.__name__[1:]
)
def test_trained_weights_are_the_cpus_and_equal_on_all_ranks(trained: Any, size: int) -> None:
    first, *others = run_ranks(size, trained, places.kind(), environment=SMALL)
    assert all(all(map(same_bits, first, other)) for other in others)


def _graph(world: World, kind: str) -> None:
    """Capture sums, in place and not, and a fused reduction; replay them among other calls."""
    device = joined_on(world, kind)
    static = fastcomm.empty(3000, device=device)
    goes = fastcomm.empty(3000, device=device)
    twice, *grads = (torch.zeros(many, device=device) for many in (30_000, 900, 5))
    fastcomm.fused_all_reduce_(grads)
    module = torch.get_device_module(kind)
    stream = module.Stream(device)
    module.synchronize()
    with places.graph(stream) as graph:
        dist.all_reduce(static)
        dist.all_reduce(twice)
        dist.all_reduce(twice, async_op=True).wait()
        assert not fastcomm.is_shared(fastcomm.empty(300, device=device))
        del goes
        found = fastcomm.fused_all_reduce_(grads, comm_dtype=torch.bfloat16)
    # No host sees what is replayed: a captured call has no number, and ends when it is captured.
    assert [(call[3], call[-1]) for call in _told(0)[-4:]] == [(None, "ok")] * 4
    with module.stream(stream):
        for turn in range(20):
            for each in (static, twice, *grads):
                each.fill_(float(turn + world.rank))
            graph.replay()
            eager = fastcomm.empty(4000, device=device).fill_(float(turn))
            dist.all_reduce(eager)
            others = [torch.full((70,), 2.0 * turn, device=device) for _ in range(2)]
            fastcomm.fused_all_reduce_(others, average=False)
            assert static.unique().tolist() == [2.0 * turn + 1]
            assert twice.unique().tolist() == [4.0 * turn + 2]
            assert grads[0].unique().tolist() == grads[1].unique().tolist() == [turn + 0.5]
            assert eager.unique().tolist() == [2.0 * turn] and found.found_inf.item() == 0
            assert others[1].unique().tolist() == [4.0 * turn]
            norm = (turn + 0.5) * math.sqrt(905)
            assert math.isclose(found.total_norm.item(), norm, rel_tol=1e-6)
            del eager
    module.synchronize()


def test_graphs_are_replayed_between_eager_calls() -> None:
    run_ranks(2, _graph, places.kind(), environment=SMALL)


def _told(known: int) -> list[Any]:
    """Return what records tell of the calls after the first so many."""
    return [
        (call.operation, call.engine, call.path, call.sequence, call.bytes, call.outcome)
        for call in distributed.records()[known:]
    ]


def _called(world: World, kind: str) -> list[Any]:
    """Call while the stream is busy; return what records tell then, and when all is done."""
    device = joined_on(world, kind)
    module = torch.get_device_module(kind)
    tensor, parts = torch.ones(100, device=device), torch.empty(4000, device=device)
    dist.barrier()
    module.synchronize()
    until(lambda: _told(0)[-1][-1] is not None, "the barrier's end in the records")
    known = len(distributed.records())
    side = module.Stream(device)
    side.wait_stream(module.current_stream(device))
    places.keep_busy(side, 500)
    with module.stream(side):
        dist.all_reduce(tensor)
        work = dist.all_gather_into_tensor(parts, parts[:2000] + 1, async_op=True)
        fastcomm.fused_all_reduce_([tensor, parts])
    busy = _told(known)
    work.wait()
    module.synchronize()
    until(lambda: all(call[-1] for call in _told(known)), "the ends of calls in the records")
    return [busy, _told(known)]


def test_records_of_calls_end_with_the_devices_work() -> None:
    for busy, done in run_ranks(2, _called, places.kind(), environment=SMALL):
        first = done[0][3]
        assert done == [
            ("all_reduce", "peer-to-peer", "one-shot", first, 400, "ok"),
            ("all_gather_into_tensor", "peer-to-peer", "pipelined", first + 1, 8000, "ok"),
            ("fused_all_reduce", "peer-to-peer", "pipelined", first + 2, 16_400, "ok"),
        ]
        assert busy == [(*call[:-1], None) for call in done]


def _left_alone(world: World, kind: str) -> list[Any]:
    device = joined_on(world, kind)
    known = len(distributed.records())
    if world.rank == 0:
        group = dist.distributed_c10d._get_default_group()
        group._get_backend(device).set_timeout(timedelta(seconds=1))
        dist.all_reduce(torch.ones(20, device=device))
        until(lambda: _told(known)[-1][-1] is not None, "the failed call's end in the records")
        world.tell("it failed")
    else:
        world.hear("it failed")
    return _told(known)


def test_the_record_of_a_failed_call_has_its_error() -> None:
    first, other = run_ranks(2, _left_alone, places.kind(), environment=SMALL)
    assert [(call[0], call[-1]) for call in first] == [("all_reduce", "CollectiveTimeoutError")]
    assert other == []


def _recorded(world: World, kind: str) -> list[float]:
    """Free a tensor that a recorded stream still reads, and write its memory."""
    device = joined_on(world, kind)
    module = torch.get_device_module(kind)
    fastcomm.empty(3000, device=device)  # makes room
    tensor = fastcomm.empty(3000, device=device).fill_(1.0)
    place = tensor.data_ptr()
    side = module.Stream(device)
    side.wait_stream(module.current_stream(device))
    places.keep_busy(side, 200)
    with module.stream(side):
        tripled = tensor * 3
    tensor.record_stream(side)
    del tensor
    again = fastcomm.empty(3000, device=device).fill_(2.0)
    assert again.data_ptr() == place
    module.synchronize()
    values: list[float] = torch.cat([tripled, again]).unique().tolist()
    return values


def test_memory_that_a_recorded_stream_reads_is_not_overwritten() -> None:
    assert run_ranks(2, _recorded, places.kind()) == [[2.0, 3.0]] * 2

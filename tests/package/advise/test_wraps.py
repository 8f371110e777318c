"""Models wrapped so that nothing is sent, between two ranks and between replicas."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastcomm._advise import costs
from fastcomm._advise.wraps import Quiet, QuietSlots, moved_by_slots


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 3))


def _quiet(world: World) -> None:
    world.init()
    model = _model()
    quiet = Quiet(model)
    data = torch.full((4, 300), world.rank + 1.0)
    sizes = []
    sent = DistributedDataParallel(_model())

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sizes.append(bucket.buffer().nbytes)
        return (
            dist.distributed_c10d._get_default_group()
            .allreduce([bucket.buffer()])
            .get_future()
            .then(lambda done: done.value()[0])
        )

    sent.register_comm_hook(None, lambda _, bucket: hook(_, bucket))
    for _ in range(3):
        sizes.clear()
        sent(data).sum().backward()
    for _ in range(2):
        quiet(data).sum().backward()  # DDP makes its buckets anew, which ranks do together
    quiet.begin()
    for _ in range(3):
        model.zero_grad()
        if world.rank == 1:
            time.sleep(0.02)
        quiet(data).sum().backward()
    # Buckets are those of a DDP that sends them, and gradients stay this rank's own.
    assert [size for size, _ in quiet.passes[-1].buckets] == sizes
    own = _model()
    own(data).sum().backward()
    for mine, alone in zip(model.parameters(), own.parameters(), strict=True):
        assert torch.equal(mine.grad, alone.grad)
    # Ranks go on from a barrier, so rank 0 has waited for rank 1 before its next bucket is ready.
    for before, after in zip(quiet.passes, quiet.passes[1:], strict=False):
        assert after.begin == before.buckets[-1][1]
        assert after.buckets[0][1] - after.begin > 0.019
    times = costs.times_of([8, 1 << 20], "all_reduce", "cpu")
    assert 0 < times[8] < times[1 << 20]
    for how in ("bfloat16", "sharded"):
        assert set(costs.times_of([4096], how, "cpu")) == {4096}
    assert costs.slowest(float(world.rank)) == world.size - 1


def test_ranks_that_send_nothing() -> None:
    run_ranks(2, _quiet)


def test_replicas_that_move_nothing() -> None:
    model = _model()
    quiet = QuietSlots(model, ["cpu", "cpu"])
    data = torch.randn(6, 300)
    for _ in range(2):
        model.zero_grad()
        output = quiet(data)
        assert torch.allclose(output, _model()(data), atol=1e-6)
        output.sum().backward()
    # The model has the gradient of the first half alone.
    own = _model()
    own(data[:3]).sum().backward()
    for mine, alone in zip(model.parameters(), own.parameters(), strict=True):
        assert mine.grad == pytest.approx(alone.grad, rel=1e-5, abs=1e-6)
    assert quiet(data[:1]).shape == (1, 3)  # fewer rows than replicas
    assert moved_by_slots(model, ["cpu", "cpu"], 3) > 0

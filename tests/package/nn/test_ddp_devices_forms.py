"""Several devices in each process of a DistributedDataParallel: arguments, results and errors.

Small whole numbers in fp64 are computed without rounding, so stock DDP with whole batches gives the
bits that replicas must give.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import fused
from support.on_ranks import on_ranks
from support.ranks import World
from torch import nn
from torch.nn import functional as F

import fastcomm

TWO = ["cpu", "cpu"]
Stock = nn.parallel.DistributedDataParallel
Ours = fastcomm.nn.parallel.DistributedDataParallel
CLIPPED = partial(Ours, max_norm=1e9)
KINDS = pytest.mark.parametrize("kind", ["cpu", "sim"])


def _whole(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).double()


def _linear() -> nn.Linear:
    model = nn.Linear(4, 2).double()
    model.weight.data = _whole(2, 4, seed=1)
    model.bias.data = _whole(2, seed=2)
    return model


def _gradients(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten().cpu() for p in module.parameters() if p.grad is not None])


@on_ranks(1)
def test_the_module_is_the_users(world: World) -> None:
    world.init()
    model = nn.Sequential(_linear(), nn.BatchNorm1d(2).double())
    ddp = Ours(model, [torch.device("cpu"), -1], output_device="cpu")
    assert ddp.module is model and list(ddp.children()) == [model]
    assert list(ddp.state_dict()) == [f"module.{key}" for key in model.state_dict()]
    assert ddp.device_ids is None and ddp.data_parallel is not None
    assert ddp.data_parallel.device_ids == TWO and ddp.data_parallel.output_device == "cpu"
    ddp.load_state_dict({key: value + 1 for key, value in ddp.state_dict().items()})
    ddp.eval()
    x = _whole(7, 4, seed=3)
    with torch.no_grad():
        assert torch.equal(ddp(input=x), model(x))
        assert torch.equal(ddp(x[:1]), model(x[:1]))  # fewer rows than replicas
    assert Ours(model).data_parallel is None
    with pytest.raises(ValueError, match="device_ids and output_device arguments only work with"):
        Ours(model, [0])  # torch's own message


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = _linear()
        self.runs: list[int] = []

    def forward(self, x: torch.Tensor, scale: float) -> dict[str, Any]:
        self.runs.append(x.size(1))
        y = self.linear(x.t()).t()
        return {"y": y, "more": (y * scale,)}


@KINDS
@pytest.mark.usefixtures("simulated")
@on_ranks(2)
def test_gradients_are_reduced_with_their_norm(world: World, kind: str) -> None:
    """Use batches along dim 1, nested results, and a norm; one process has a short batch."""
    two = world.join(kind, 2)
    models = [Pair().to(two[0]), Pair()]
    ours = Ours(models[0], two, None, 1, max_norm=1.0)
    ddps: list[Any] = [ours, Stock(models[1])]
    x = _whole(4, 1 if world.rank else 6, seed=10 + world.rank)
    for ddp, device in zip(ddps, (two[0], "cpu"), strict=True):
        out = ddp(x.to(device), scale=2.0)
        (out["y"].sum() + out["more"][0].square().sum()).backward()
    assert sorted(models[0].runs) == ([1] if world.rank else [3, 3])
    grads = [p.grad for p in models[1].parameters() if p.grad is not None]
    total = fused.norm([fused.part(grad, 2) for grad in grads], 2)
    norm = ours.result().total_norm
    assert norm is not None and float(norm) == total > 1
    nn.utils.clip_grad_norm_(models[1].parameters(), 1.0)
    torch.testing.assert_close(_gradients(ours), _gradients(models[1]), rtol=1e-12, atol=0)


@KINDS
@pytest.mark.usefixtures("simulated")
@on_ranks(2)
def test_replicas_may_compute_the_loss(world: World, kind: str) -> None:
    """Let replicas return losses, whose mean is that over the batch, with any number of devices."""
    four = world.join(kind, 4)
    stock = Stock(_linear())
    x, y = (_whole(8, n, seed=20 + world.rank) for n in (4, 2))
    wanted = F.mse_loss(stock(x), y)
    wanted.backward()
    for devices in (four[:2], four, four[:1], None):
        model = _linear().to(four[0])
        ours = Ours(model, devices, loss_fn=nn.MSELoss())
        losses = ours(x, y) if devices else ours(x.to(four[0]), y.to(four[0]))
        assert losses.shape == (len(devices or TWO[:1]),)
        assert torch.equal(losses.mean().cpu(), wanted)
        losses.mean().backward()
        assert torch.equal(_gradients(ours), _gradients(stock))


@KINDS
@pytest.mark.usefixtures("simulated")
@on_ranks(2)
def test_ranks_with_fewer_inputs_join(world: World, kind: str) -> None:
    two = world.join(kind, 2)
    for word in (None, "find_unused_parameters", "gradient_as_bucket_view"):
        options: dict[str, Any] = {word: True} if word else {}
        found = []
        for wrap, devices in ((Ours, two), (Ours, None), (CLIPPED, None), (Stock, None)):
            ddp: Any = wrap(_linear().to(two[0] if devices else "cpu"), devices, **options)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=2.0**-7)
            with ddp.join():
                for step in range(2 + world.rank):  # the last rank has more to do
                    optimizer.zero_grad()
                    ddp(_whole(5, 4, seed=10 * step + world.rank)).square().sum().backward()
                    optimizer.step()
            dist.barrier()
            found.append(torch.cat([p.detach().cpu().flatten() for p in ddp.parameters()]))
        assert all(torch.equal(each, found[-1]) for each in found)


def test_what_is_refused() -> None:
    def wrap(module: nn.Module, devices: list[Any], **options: Any) -> None:
        Ours(module, devices, **options)

    linear, norm = _linear(), nn.SyncBatchNorm(3)
    for mixed in (["cpu", 0], [torch.device("cuda", 1), "cpu"], [-1, "cuda"]):
        with pytest.raises(ValueError, match="must be of one type, but these are cpu and cuda"):
            wrap(linear, mixed)
    match = r"module must have its parameters and buffers on device cpu \(device_ids\[0\]\) but"
    with pytest.raises(RuntimeError, match=match):
        wrap(nn.Sequential(linear, nn.Linear(2, 2, device="meta")), TWO)
    with pytest.raises(ValueError, match="SyncBatchNorm is for a process with one device"):
        wrap(nn.Sequential(linear, norm), TWO)
    for name in ("mixed_precision", "delay_all_reduce_named_params"):
        with pytest.raises(ValueError, match=f"{name} is for a process with one device"):
            wrap(linear, TWO, **{name: [("weight", linear.weight)]})
    if not torch.accelerator.is_available():
        with pytest.raises(RuntimeError, match="device 0 was asked for, but torch finds no accel"):
            wrap(linear, [0, 1])

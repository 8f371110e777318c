"""Copies and pickles of what has a process group: what stock torch allows, and they train on."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World
from torch import nn
from torch.optim.swa_utils import AveragedModel

import fastcomm
from fastcomm.ddp_comm_hooks import FusedState, fused_hook

Ddp = nn.parallel.DistributedDataParallel
OurDdp = fastcomm.nn.parallel.DistributedDataParallel


def _saved(what: Any) -> Any:
    stream = io.BytesIO()
    torch.save(what, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda what: pickle.loads(pickle.dumps(what)),
    "torch.save": _saved,
}


def _net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def _hooked() -> Any:
    ddp = Ddp(_net())
    ddp.register_comm_hook(FusedState(ddp.parameters()), fused_hook)
    return ddp


FED_BACK = {"comm_dtype": torch.bfloat16, "error_feedback": True}
MODELS: dict[str, Callable[[], Any]] = {
    "torch's": lambda: Ddp(_net()),
    "torch's with our hook": _hooked,
    "ours": lambda: OurDdp(_net()),
    "ours with replicas": lambda: OurDdp(_net(), device_ids=["cpu", "cpu"]),
    "ours, fed back": lambda: OurDdp(_net(), max_norm=1.0, **FED_BACK),
    "ours, static": lambda: OurDdp(_net(), static_graph=True),
}


def _train(model: Any, rank: int, steps: int = 2) -> None:
    for step in range(steps):
        draw = torch.Generator().manual_seed(10 * step + rank)
        model.zero_grad()
        model(torch.randn(8, 6, generator=draw)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad


@on_ranks(2)
def test_ddp_models_are_copied_as_torchs_are_and_train_on(world: World) -> None:
    world.init()
    for name, make in MODELS.items():
        for steps_before in (0, 2):
            for way, copied in WAYS.items():
                model = make()
                _train(model, world.rank, steps_before)
                other = copied(model)
                assert type(other) is type(model), (name, way)
                if way != "copy":  # which shares its parameters
                    wanted = copied(model.state_dict())
                    _train(other, world.rank)
                    for key, value in model.state_dict().items():
                        assert torch.equal(value, wanted[key]), (name, way, key)
                    _train(model, world.rank)
                    for a, b in zip(other.parameters(), model.parameters(), strict=True):
                        assert torch.equal(a, b), (name, way)
                else:
                    _train(other, world.rank)
                if isinstance(other, OurDdp) and way != "copy":
                    assert other.result().total_norm is not None
        averaged = AveragedModel(make())
        averaged.update_parameters(make())
        averaged(torch.randn(4, 6))
    for kind in (Ddp, OurDdp):
        model = kind(_net(), process_group=dist.new_group())
        for copied in WAYS.values():  # torch's rule
            with pytest.raises(RuntimeError, match="default process group"):
                copied(model)


def _step(net: nn.Module, optimizer: Any, rank: int) -> None:
    draw = torch.Generator().manual_seed(rank)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(8, 6, generator=draw)).square().mean().backward()
        optimizer.step()


@on_ranks(2)
def test_optimizers_scalers_and_states_are_copied_and_go_on(world: World) -> None:
    world.init()
    for copied in WAYS.values():
        scaler = copied(fastcomm.amp.GradScaler("cpu", init_scale=8.0))
        assert scaler.scale(torch.ones(())).item() == 8.0
        state = copied(FusedState(_net().parameters(), max_norm=2.0))
        assert state.max_norm == 2.0 and len(state.parameters) == 6
        for trained in (False, True):
            net = _net()
            optimizer = fastcomm.optim.ShardedOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
            if trained:
                _step(net, optimizer, world.rank)
            if copied is copy.copy:  # which shares its parameters
                _step(net, copied(optimizer), world.rank)
                continue
            twin, other = copied((net, optimizer))
            _step(net, optimizer, world.rank)
            assert not all(map(torch.equal, twin.parameters(), net.parameters()))
            _step(twin, other, world.rank)
            assert all(map(torch.equal, twin.parameters(), net.parameters()))
    own = dist.new_group()
    state = FusedState(_net().parameters(), own)
    assert copy.copy(state).process_group is own and copy.deepcopy(state).process_group is own
    with pytest.raises(RuntimeError, match="default process group"):
        pickle.dumps(state)

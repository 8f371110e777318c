"""DDP and fully_shard over several hosts train to the weights of one host, bit for bit."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.alike import assert_alike, plain
from support.caught import Caught, catch
from support.namespaces import Host
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks
from support.stores import join_hosts
from support.training import STEPS, Dense, Variant, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import fastcomm

pytestmark = pytest.mark.serial  # network namespaces


def _power_sgd(ddp: DistributedDataParallel) -> None:
    """Let continuations reduce, two after the other for each bucket."""
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


BF16 = torch.bfloat16
SMALL = {"bucket_cap_mb": 0.05}  # several buckets, short and long
VIEWS = {**SMALL, "gradient_as_bucket_view": True}
DDP: dict[str, Variant] = {
    "small buckets": Variant(SMALL),
    "views": Variant(VIEWS),
    "bf16": Variant(VIEWS, dtype=BF16),
    "unused parameters": Variant({**VIEWS, "find_unused_parameters": True}, leave_one_out=True),
    "no_sync": Variant(SMALL, accumulate=True),
    "PowerSGD": Variant(SMALL, hook=_power_sgd),
}
FULLY_SHARD: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"mp_policy": MixedPrecisionPolicy(BF16, BF16)},
    "bf16, sums in fp32": {"mp_policy": MixedPrecisionPolicy(BF16, torch.float32)},
}
# Meshes of ranks, by the hosts on which these lie, and what runs the groups of each dimension:
# parts of a model lie in the last one, copies in one before. A group with one rank on each of two
# hosts is Gloo's as a whole, whose sums of two have the same bits.
MESHES: dict[str, dict[tuple[int, ...], list[str]]] = {
    "0011": {(4,): ["composed"], (2, 2): ["gloo", "shared"]},
    "00001111": {(2, 4): ["gloo", "shared"], (4, 2): ["composed", "shared"]},
    "00112233": {(4, 2): ["composed", "shared"]},
}


def _algorithm(group: Any = None) -> str:
    chosen = fastcomm.explain("all_reduce", torch.empty(1000), group=group).algorithm
    return chosen if chosen in ("composed", "gloo") else "shared"


def _ddp(rank: int, places: str, several: bool) -> dict[str, Any]:
    assert _algorithm() == ("composed" if several else "shared")
    return {name: plain(train(variant, rank)) for name, variant in DDP.items()}


def _divided(mesh: DeviceMesh, rank: int, options: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(7)
    model = Dense()
    for layer in [*model.layers, model]:
        if not isinstance(layer, nn.Tanh):
            fully_shard(layer, mesh=mesh, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(8, 32, generator=data)
        target = torch.randint(10, (8,), generator=data)
        loss = nn.functional.cross_entropy(model(x).float(), target)
        loss.backward()
        losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "parts": plain(model.state_dict())}


def _fully_shard(rank: int, places: str, several: bool) -> dict[str, Any]:
    trained = {}
    for shape, algorithms in MESHES[places].items():
        names = ("copies", "parts")[-len(shape) :]
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        found = [_algorithm(mesh.get_group(name)) for name in names]
        assert found == (algorithms if several else ["shared"] * len(shape)), shape
        for name in FULLY_SHARD if len(places) == 4 else ["bf16"]:
            trained[f"{shape}, {name}"] = _divided(mesh, rank, FULLY_SHARD[name])
    return trained


def _train(world: World, hosts: list[Host], port: int, places: str, what: Any) -> dict[str, Any]:
    if hosts:
        join_hosts(world, hosts, port, places)
    else:
        world.init()
    trained: dict[str, Any] = what(world.rank, places, bool(hosts))
    dist.barrier()
    return trained


@pytest.mark.parametrize("places", MESHES)
@pytest.mark.parametrize("what", [_ddp, _fully_shard])
def test_weights_are_those_of_one_host(four_hosts: list[Host], what: Any, places: str) -> None:
    size = len(places)
    wanted = run_ranks(size, _train, [], 0, places, what)
    found = run_ranks(size, _train, four_hosts, 29970 + size, places, what)
    for rank, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert_alike(ours, theirs, where=f"rank {rank}")


def _until_one_dies(world: World, hosts: list[Host], port: int) -> Caught:
    """Train in a mesh, end the group at an error as programs do, and return the error."""
    join_hosts(world, hosts, port, "0011")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    _divided(mesh, world.rank, {})
    if world.rank == 3:
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGKILL]).start()

    def train_on() -> None:
        try:
            while True:
                _divided(mesh, world.rank, {})
        finally:
            dist.destroy_process_group()

    return catch(train_on)


def test_a_death_reaches_all_groups_of_a_mesh(hosts: list[Host]) -> None:
    """Rank 0 has no group with rank 3 but the default one, and hears of it from the others."""
    outcomes = run_outcomes(4, _until_one_dies, hosts, 29979)
    assert outcomes[3].exitcode == -signal.SIGKILL
    for outcome in outcomes[:3]:
        assert outcome.error is None, outcome.error
        assert outcome.value.kind in ("PeerLostError", "PeerLeftError"), outcome.value
        assert "died. Look at its own output" in outcome.value.text, outcome.value
    times = [outcome.value.at for outcome in outcomes[:3]]
    assert max(times) - min(times) < SOON

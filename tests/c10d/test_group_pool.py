"""Tensors that operations between processes' devices use in place. On simulated devices."""

from __future__ import annotations

import gc
import logging
import re
import time
from pathlib import Path

import pytest
import sim
import torch
import torch.distributed as dist
from support.direct import SMALL, init, is_direct, joined, note_bucket, small_net
from support.patience import SOON
from support.ranks import World, run_outcomes, run_ranks
from support.tree import same_bits
from torch.nn.parallel import DistributedDataParallel

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")


def _again(world: World) -> tuple[bool, bool, list[float]]:
    """Return whether memory is reused, whether all of it fits into one piece, and a sum in it."""
    device = joined(world)
    first = fastcomm.empty(1000, device=device)
    place = first.data_ptr()
    del first
    parts = [fastcomm.empty(500, device=device) for _ in range(4)]
    del parts
    second = fastcomm.empty(1000, device=device).fill_(float(world.rank))
    larger = fastcomm.empty(5 << 20, device=device)  # floats: more than is available
    dist.all_reduce(larger.fill_(1.0))
    dist.all_reduce(second)
    assert (larger == float(world.size)).all()
    return second.data_ptr() == place, fastcomm.is_shared(larger), second.unique().tolist()


def test_memory_is_used_again_and_grows() -> None:
    assert run_ranks(3, _again) == [(True, True, [3.0])] * 3


def _on_two_streams(world: World) -> list[bool]:
    """Free a tensor whose stream still writes it; return whether each stream gets its memory."""
    device = joined(world)
    fastcomm.empty(4000, device=device)  # make room: more is made when devices are idle
    gate = sim.load().Gate(world.rank, torch.sim.current_stream().stream_id)
    first = fastcomm.empty(4000, device=device).fill_(1.0)
    place = first.data_ptr()
    del first
    with torch.Stream(device):
        other = fastcomm.empty(4000, device=device).fill_(2.0)
    same = fastcomm.empty(4000, device=device).fill_(3.0)
    gate.open()
    torch.sim.synchronize()
    places = [each.data_ptr() == place for each in (other, same)]
    if places == [False, True]:  # else it is reported
        assert (other.unique().item(), same.unique().item()) == (2.0, 3.0)
    return places


def test_memory_stays_with_its_stream() -> None:
    assert run_ranks(2, _on_two_streams) == [[False, True]] * 2


def test_memory_that_changes_its_stream_is_reported() -> None:
    outcomes = run_outcomes(2, _on_two_streams, environment={"FC_CONTROL": "share_streams"})
    texts = [outcome.error or "" for outcome in outcomes]
    assert any("nothing orders" in text for text in texts), texts


def _alone(world: World) -> tuple[bool, bool, float, float]:
    """Ask on one rank; the others do an operation later; what is issued is right all the same."""
    device = joined(world)
    begun = time.monotonic()
    first = fastcomm.empty(9000, device=device) if world.rank == 1 else None
    waited = time.monotonic() - begun
    dist.all_reduce(torch.ones(1, device=device))
    begun = time.monotonic()
    data = fastcomm.empty(9000, device=device).fill_(1.0)
    again = time.monotonic() - begun
    dist.all_reduce(data)
    assert data.unique().tolist() == [float(world.size)]
    return first is not None and fastcomm.is_shared(first), fastcomm.is_shared(data), waited, again


def test_who_asks_alone_waits_for_some_seconds_once() -> None:
    """A rank that asks after other operations is not met: the devices could not come to rest."""
    found = run_ranks(3, _alone)
    assert not any(first or data for first, data, _, _ in found)
    assert 4.5 < found[1][2] < SOON and found[1][3] < found[1][2], found
    assert all(4.5 < found[rank][3] < SOON for rank in (0, 2)), found


def _none(world: World) -> list[str]:
    """Return why there is no such memory."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fastcomm").addHandler(handler)
    device = init(world)
    assert not fastcomm.is_shared(fastcomm.empty(10, device=device))
    data = torch.ones(10, device=device)
    dist.all_reduce(data)
    data = fastcomm.empty(3, 10, device=device, dtype=torch.int32, requires_grad=False).fill_(1)
    assert data.shape == (3, 10) and data.device == device and not fastcomm.is_shared(data)
    dist.all_reduce(data)
    assert data.unique().tolist() == [world.size]
    return said


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"FASTCOMM_POOL_MB": "0"}, "FASTCOMM_POOL_MB allows no more"),
        ({"FASTCOMM_ROUTE": "pinned"}, "devices do not reach each other's memory"),
        ({"FASTCOMM_ROUTE": "nccl"}, "no memory that operations use in place"),
    ],
)
def test_where_there_is_none_it_is_ordinary_and_said(
    environment: dict[str, str], reason: str
) -> None:
    for said in run_ranks(2, _none, environment=environment):
        assert re.search("decided at the process group's first collective", said[0]), said
        assert re.search(reason, said[-1]), said


def _on_two_devices(world: World) -> list[torch.Tensor]:
    """Use tensors on two devices of a process, whichever is current, and a model on both."""
    device = joined(world)
    other = torch.device("sim", 2 + world.rank)
    made = fastcomm.empty(9, device=other)
    assert made.device == other and not fastcomm.is_shared(made)  # nothing is agreed on yet
    data = torch.full((5000,), world.rank + 1.0, device=other)
    dist.all_reduce(data)
    assert data.unique().tolist() == [3.0] and is_direct(data)
    for current, named in ((device, other), (other, other), (other, torch.device("sim"))):
        torch.sim.set_device(current)
        made = fastcomm.empty(9, device=named)
        assert made.device == other and fastcomm.is_shared(made)
    torch.sim.set_device(device)
    made = fastcomm.empty(9, device="sim")
    assert made.device == device and fastcomm.is_shared(made)
    dist.group.WORLD._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    grads = []
    for first, second in ((device, other), (torch.device("cpu"),) * 2):
        net = small_net()
        net[:2].to(first)
        net[2:].to(second)
        net[1].register_forward_hook(lambda layer, given, result, to=second: result.to(to))
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.004, gradient_as_bucket_view=True)
        buckets: list[bool] = []
        ddp.register_comm_hook(buckets, note_bucket)
        torch.manual_seed(world.rank)
        ddp(torch.randn(5, 6).to(first)).square().mean().backward()
        assert buckets and all(buckets), buckets
        assert all(p.grad.device == p.device for p in net.parameters())
        grads.append([p.grad.cpu() for p in net.parameters()])
    assert all(map(same_bits, *grads))
    return grads[0]


def test_a_process_may_have_several_devices() -> None:
    found = run_ranks(2, _on_two_devices, environment=SMALL)
    assert all(map(same_bits, *found))


def _behind_an_operation(world: World) -> tuple[float, float]:
    """Ask for memory during an operation that a peer joins only when it hears from the asker."""
    device = joined(world)
    first = fastcomm.empty(9, device=device)
    data = torch.full((5,), world.rank + 1.0, device=device)
    message = torch.ones(1)
    if world.rank == 0:
        work = dist.all_reduce(data, async_op=True)
        begun = time.monotonic()
        fastcomm.empty(9 << 20, device=device)
        waited = time.monotonic() - begun
        dist.send(message, 1)
        work.wait()
    else:
        dist.recv(message, 0)
        waited = 0.0
        dist.all_reduce(data)
    dist.all_reduce(first.fill_(1.0))
    assert first.unique().tolist() == [2.0]
    return data[0].item(), waited


def test_who_asks_behind_an_operation_under_way_waits_no_longer() -> None:
    found = run_ranks(2, _behind_an_operation)
    assert [total for total, _ in found] == [3.0, 3.0] and found[0][1] < 25


def _without_group(world: World) -> bool:
    sim.load()
    return fastcomm.is_shared(fastcomm.empty(3, device=f"sim:{world.rank}"))


def test_without_a_group_it_is_ordinary() -> None:
    assert run_ranks(2, _without_group) == [False] * 2


def _outlives(world: World) -> list[int]:
    """Keep a tensor of a group that is gone; its memory goes with it, and the group's windows."""
    device = joined(world)
    touched = []
    for turn in range(6):
        data = fastcomm.empty(8 << 20, device=device).fill_(float(turn))
        dist.all_reduce(part := data[:1000])
        dist.destroy_process_group()
        assert (part + 1).unique().tolist() == [turn * world.size + 1.0]
        assert fastcomm.is_shared(data)
        world.init("cpu:fastcomm,sim:fastcomm", f"again{turn}")
        dist.all_reduce(data[1000:])  # staged: it is not this group's; all of the windows are used
        assert (data == float(turn * world.size)).all()
        del data, part
        gc.collect()
        dist.barrier()
        found = re.search(r"RssShmem:\s+(\d+)", Path("/proc/self/status").read_text())
        assert found is not None
        touched.append(int(found[1]) * 1024)
    return touched


def test_a_tensor_outlives_its_group() -> None:
    for touched in run_ranks(2, _outlives):
        # A tensor has 32 MiB, and a group's windows 64.
        assert touched[-1] - touched[1] < 128 << 20, touched


def _operators_beside_peers(world: World) -> None:
    """Let operators write and read memory that peers' kernels use."""
    device = joined(world)
    data = fastcomm.empty(700, device=device)
    for turn in range(3):
        dist.all_reduce(data.fill_(float(turn)))
        assert data.unique().tolist() == [2.0 * turn]


@pytest.mark.parametrize("control", ["weaken_publish", "weaken_wait"])
def test_an_operator_without_an_order_to_other_processes_is_reported(control: str) -> None:
    environment = {"FC_CONTROL": control, **SMALL}
    outcomes = run_outcomes(2, _operators_beside_peers, environment=environment)
    text = "".join(outcome.error or "" for outcome in outcomes)
    of_process = r".* of memory of process \d+, which "
    assert re.search(rf"aten::fill_\S* .* writes {of_process}.*reduce.* reads, and nothing", text)
    assert re.search(rf"reduce.* reads {of_process}aten::fill_\S* .* writes, and nothing", text)

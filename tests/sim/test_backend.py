"""The backend in NCCL's place: what it computes, and how it is refused, aborted, kept waiting."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.direct import OPERATIONS, memory_after
from support.patience import OPERATION, SOON
from support.ranks import World, run_outcomes, run_ranks
from support.tree import same_bits

import sim

pytestmark = pytest.mark.usefixtures("simulated")

LONG = timedelta(seconds=OPERATION)


def _backend(world: World, timeout: timedelta = LONG, **options: Any) -> Any:
    store = dist.FileStore(os.path.join(world.directory, "store"), world.size)
    return sim.SimBackend(store, world.rank, world.size, timeout, **options)


def _init(world: World) -> tuple[torch.device, Any]:
    sim.register_backend()
    torch.sim.set_device(world.rank + 1)
    world.init("cpu:gloo,sim:simccl", "simccl")
    device = torch.device("sim", world.rank + 1)
    return device, dist.distributed_c10d._get_default_group()._get_backend(device)


DTYPES = (torch.float32, torch.float64, torch.int32, torch.complex64)
# How often each is called for a type, besides sums of all.
CALLS = dict.fromkeys(["_allgather_base", "allgather_into_tensor_coalesced", "alltoall"], 1)
CALLS |= dict.fromkeys(["broadcast", "gather", "scatter", "reduce_scatter_tensor_coalesced"], 1)
CALLS |= dict.fromkeys(["_reduce_scatter_base", "alltoall_base", "reduce"], 2)
CALLS |= {**dict.fromkeys(["allgather", "recv", "send"], 3), "reduce_scatter": 4}


def _operations(world: World) -> dict[str, int]:
    """Return how often each operation of the backend was called; the bits are fastcomm's."""
    sim.load()
    cases = [(operation, dtype) for operation in OPERATIONS for dtype in DTYPES]
    world.init("fastcomm")
    cpu = torch.device("cpu")
    expected = [memory_after(case, world, cpu, dtype, 6) for case, dtype in cases]
    dist.destroy_process_group()
    device, backend = _init(world)
    for (case, dtype), wanted in zip(cases, expected, strict=True):
        found = memory_after(case, world, device, dtype, 6)
        assert all(map(same_bits, found, wanted)), (case.__name__, dtype)
    narrow = torch.full((3,), 1.5, dtype=torch.bfloat16, device=device)
    dist.all_reduce(narrow)
    assert narrow.tolist() == [3] * 3
    turned = torch.randn(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    reference = turned.cpu()
    dist.all_reduce(turned)
    dist.all_reduce(reference)
    assert torch.equal(turned.cpu(), reference) and turned.stride() == reference.stride()
    tensors = [torch.full((4,), float(each), device=device) for each in (1, 10)]
    assert backend.supports_coalescing
    dist.all_reduce_coalesced(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[2] * 4, [20] * 4]
    dist.barrier(device_ids=[device.index])
    calls: dict[str, int] = backend.calls()
    return calls


def test_each_operation() -> None:
    calls, others = run_ranks(2, _operations)
    assert calls == others
    calls.pop("barrier", None)  # torch may choose the CPU's backend for it
    assert calls.pop("allreduce") == 2 * len(DTYPES) + 2
    assert calls.pop("allreduce_coalesced") == 2 * len(DTYPES) + 1
    assert calls == {name: count * len(DTYPES) for name, count in CALLS.items()}


def _asynchronous(world: World) -> None:
    backend = _backend(world)
    device = f"sim:{world.rank}"
    backend.allreduce([torch.ones(1, device=device)]).wait()  # forms what later calls go through
    order = dist.FileStore(os.path.join(world.directory, "order"), world.size)
    if world.rank == 1:
        order.wait(["rank 0 has looked"])
    data = torch.ones(3, device=device)
    works = [backend.allreduce([data])]
    if world.rank == 0:
        assert not works[0].is_completed() and data.tolist() == [1] * 3
        order.set("rank 0 has looked", "")
    works.append(backend.broadcast([torch.ones(2, device=device)]))
    future = works[1].get_future().then(lambda done: done.value()[0].sum().item())
    assert future.wait() == 2
    assert works[0].is_completed() and data.tolist() == [2] * 3  # it comes before the other
    assert works[0].get_future().value()[0].data_ptr() == data.data_ptr()
    backend.shutdown()


def test_works_end_later_and_in_order() -> None:
    run_ranks(2, _asynchronous)


def _said(call: Callable[[], Any], kind: type[Exception] = dist.DistBackendError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def _refused(world: World) -> None:
    backend = _backend(world)
    device = f"sim:{world.rank}"
    here = torch.ones(4)
    assert "device type cpu" in _said(lambda: backend.allreduce([here]), RuntimeError)
    there = here.to(device)
    strided = torch.ones(4, 4, device=device).t()[1:]
    assert "contiguous" in _said(lambda: backend.allreduce([strided]), ValueError)
    assert "one tensor" in _said(lambda: backend.allreduce([there, there]), ValueError)
    elsewhere = torch.ones(8, device="sim:7")
    assert "one device" in _said(lambda: backend._allgather_base(elsewhere, there), ValueError)
    short = torch.ones(7, device=device)
    assert "world_size times" in _said(lambda: backend._allgather_base(short, there), ValueError)
    assert backend.get_error().name == "SUCCESS"
    backend.allreduce([there]).wait()
    assert there.tolist() == [2] * 4


def test_what_nccl_refuses() -> None:
    run_ranks(2, _refused)


def _duplicate(world: World) -> None:
    backend = _backend(world)
    for _ in range(2):
        said = _said(lambda: backend.allreduce([torch.ones(2, device="sim:3")]))
        assert "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3" in said
    data = torch.ones(2, device=f"sim:{world.rank}")
    backend.allreduce([data]).wait()
    assert data.tolist() == [2, 2]


def test_two_ranks_on_one_device_are_refused() -> None:
    run_ranks(2, _duplicate)


def _machines(world: World) -> None:
    backend = _backend(world, machine=f"host {world.rank}")
    data = torch.ones(2, device="sim:3")
    backend.allreduce([data]).wait()
    assert data.tolist() == [2, 2]


def test_devices_of_other_machines_are_others() -> None:
    run_ranks(2, _machines)


def _aborted(world: World) -> None:
    backend = _backend(world)
    device = f"sim:{world.rank}"
    done = torch.ones(2, device=device)
    backend.allreduce([done]).wait()
    if world.rank == 0:
        backend.hang_next()
    data = torch.ones(2, device=device)
    works = [backend.allreduce([data]), backend.barrier()]
    with pytest.raises(dist.DistBackendError, match="timed out"):
        works[0].wait(timedelta(milliseconds=300))
    assert not any(work.is_completed() for work in works)
    begun = time.monotonic()
    backend.abort()
    text = f"NCCL communicator was aborted on rank {world.rank}."
    for work in works:
        assert text in _said(work.wait)
        assert not work.is_success()
    with pytest.raises(dist.DistBackendError, match="aborted"):
        backend.allreduce([data])
    with pytest.raises(RuntimeError, match="aborted"):
        works[0].get_future().wait()
    assert data.tolist() == [1, 1] and done.tolist() == [2, 2]
    assert backend.get_error().name == "COMM_ERROR"
    del works, backend
    assert time.monotonic() - begun < SOON


def test_abort_ends_what_hangs() -> None:
    run_ranks(2, _aborted)


def _message_aborted(world: World) -> None:
    backend = _backend(world)
    data = torch.ones(2, device=f"sim:{world.rank}")
    first = backend.recv if world.rank == 0 else backend.send  # forms the pair's communicator
    first([data], 1 - world.rank, 0).wait()
    if world.rank == 0:
        work = backend.recv([data], 1, 0)
        time.sleep(0.2)
        assert not work.is_completed()
        backend.abort()
        assert "aborted on rank 0" in _said(work.wait)
        world.tell("aborted")
    else:
        world.hear("aborted")  # a rank that leaves ends the pair's connection


def test_abort_ends_a_receive() -> None:
    run_ranks(2, _message_aborted)


def _forming_aborted(world: World) -> None:
    backend = _backend(world)
    if world.rank == 0:
        threading.Timer(0.3, backend.abort).start()
        data = torch.ones(2, device="sim:0")
        assert "aborted on rank 0" in _said(lambda: backend.allreduce([data]))
        world.tell("aborted")
    else:
        world.hear("aborted")


def test_abort_ends_the_wait_for_a_rank_that_issues_nothing() -> None:
    run_ranks(2, _forming_aborted)


def _dies(world: World) -> float:
    backend = _backend(world, timedelta(seconds=6))
    data = torch.ones(2, device=f"sim:{world.rank}")
    backend.allreduce([data]).wait()
    if world.rank == 1:
        os._exit(7)
    begun = time.monotonic()
    assert "Watchdog" in _said(lambda: backend.allreduce([data]).wait())
    assert data.tolist() == [2, 2]
    return time.monotonic() - begun


def test_a_rank_that_died_is_waited_for() -> None:
    first, second = run_outcomes(2, _dies)
    assert second.exitcode == 7 and first.error is None and first.value > 1.5

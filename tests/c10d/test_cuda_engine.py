"""Collectives between processes with a device each, by kernels that use each other's memory.

On simulated devices. What such an operation computes: ``test_device_tensors.py``.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sim
import torch
import torch.distributed as dist
from support.caught import catch
from support.direct import SMALL, init, is_direct, wait_that_expires
from support.patience import ENDS, SOON
from support.ranks import World, run_outcomes, run_ranks
from support.reductions import DTYPES as REDUCED
from support.reductions import OPS, exists, inputs, op_of, same

import fastcomm

pytestmark = pytest.mark.usefixtures("simulated")

QUEUES = pytest.mark.parametrize("queues", ["1", "8", "32"])


def _reductions(world: World) -> None:
    device = init(world)
    rank, size = world.rank, world.size
    own = slice(rank * 67, (rank + 1) * 67)
    for dtype in REDUCED:
        for op in (op for op in OPS if exists(op, dtype)):
            here = inputs(dtype, size * 67, rank)
            there, part = here.to(device), torch.empty(67, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(part, there, op=op_of(op))
            dist.reduce(at_root := there.clone(), 1, op=op_of(op))
            dist.all_reduce(there, op=op_of(op))
            dist.all_reduce(here, op=op_of(op))
            assert same(there.cpu(), here, op), (dtype, op)
            assert same(part.cpu(), here[own], op), (dtype, op)
            assert rank != 1 or same(at_root.cpu(), here, op), (dtype, op)
            assert is_direct(there, op=op), (dtype, op)
    real = torch.ones(3, device=device)
    complex_sum = torch.full((3,), 1 + 2j, device=device)
    dist.all_reduce(complex_sum)
    assert complex_sum.tolist() == [size * (1 + 2j)] * 3
    for tensor, op in ((complex_sum, "max"), (real, "band"), (real > 0, "avg")):
        assert not is_direct(tensor, op=op)
        options = dist.AllreduceOptions()
        options.reduceOp = op_of(op)  # torch refuses some by itself
        backend = dist.group.WORLD._get_backend(device)
        caught = catch(lambda x, b=backend, o=options: b.allreduce([x], o), tensor)
        assert caught.kind == "UnsupportedError", caught
    dist.all_reduce(real)
    assert real.tolist() == [float(size)] * 3


def test_every_reduction_has_the_bits_of_the_cpu() -> None:
    """With NaN, zeros of both signs, infinities and subnormals; invalid reductions are refused."""
    run_ranks(3, _reductions, environment=SMALL)


def _elsewhere(world: World) -> None:
    """Check that operations without a kernel are right all the same."""
    device = init(world)
    size, rank = world.size, world.rank
    ones = torch.ones(5, device=device)
    dist.all_reduce(ones)
    assert not is_direct(ones, "all_reduce_sparse")
    dist.all_reduce(some := torch.tensor([rank == 0, False], device=device))
    assert some.tolist() == [True, False]
    parts = [torch.full((r + 1,), float(rank), device=device) for r in range(size)]
    dist.reduce_scatter(mine := torch.zeros(rank + 1, device=device), parts)
    assert mine.tolist() == [float(sum(range(size)))] * (rank + 1)
    far = torch.ones(2, device=f"sim:{(rank + 4) % 8}")
    dist.all_reduce(far)
    assert far.tolist() == [size] * 2
    dist.barrier()
    dist.all_reduce(ones)
    assert ones.tolist() == [size * size] * 5


def test_what_has_no_kernel_goes_elsewhere() -> None:
    run_ranks(3, _elsewhere)


def _streams(world: World, turns: int) -> list[float]:
    """Use late producers, consumers on other streams, and tensors that are dropped at once."""
    device = init(world)
    native = sim.load()
    main, side = torch.sim.current_stream(), torch.Stream(device)
    total = torch.zeros(700, device=device)
    dist.all_reduce(torch.ones(1, device=device))
    for turn in range(turns):
        native.sleep(world.rank, main.stream_id, 500 * (world.rank + 1))
        data = torch.full((700,), float(turn + world.rank), device=device)
        work = dist.all_reduce(data, async_op=True)
        now = torch.ones(700, device=device)
        dist.all_reduce(now)  # after the other one, on this stream
        side.wait_stream(main)
        with side:
            work.wait()
            doubled = data * 2
        data.record_stream(side)  # which may not have read it when its future lets go of it
        done = work.get_future().then(lambda done: done.value()[0].sum())
        del data, work
        torch.full((700,), -1.0, device=device)  # memory that was freed
        main.wait_stream(side)
        total += doubled + now
        if world.rank == 0:
            time.sleep(0.002)
        assert done.wait().item() == 700 * sum(turn + r for r in range(world.size))
    result: list[float] = total.cpu().unique().tolist()
    return result


@QUEUES
def test_streams_wait_for_each_other(queues: str) -> None:
    found = run_ranks(2, _streams, 6, environment={**SMALL, "CUDA_DEVICE_MAX_CONNECTIONS": queues})
    expected = sum(2 * (2 * turn + 1) + 2 for turn in range(6))
    assert found == [[float(expected)]] * 2


def _order(world: World) -> list[list[float]]:
    """Do what nothing orders without the rules that the controls leave out."""
    device = init(world)
    dist.all_reduce(torch.ones(1, device=device))
    data = torch.full((700,), float(world.rank), device=device)
    work = dist.all_reduce(data, async_op=True)
    del data
    torch.full((700,), 3.0, device=device)
    dist.all_reduce(other := torch.ones(700, device=device))
    work.wait()
    return [each.cpu().unique().tolist() for each in (work.result()[0] + 0, other)]


def test_order() -> None:
    assert run_ranks(2, _order) == [[[1.0], [2.0]]] * 2


def _let_go(world: World) -> None:
    device = init(world)
    dist.all_reduce(torch.ones(1, device=device))
    data = torch.ones(700, device=device)
    gate = sim.load().Gate(world.rank, torch.sim.current_stream().stream_id)
    dist.all_reduce(data, async_op=True)
    del data
    torch.full((700,), 3.0, device=device)  # in its memory, if that was freed
    gate.open()


def test_tensors_live_until_their_operation_is_done() -> None:
    run_ranks(2, _let_go)


@pytest.mark.parametrize(
    ("use", "control"),
    [
        *((_order, control) for control in ("run_ahead", "overtake", "wait_for_none")),
        (_let_go, "let_go_early"),
    ],
)
def test_a_missing_order_is_reported(use: Callable[[World], object], control: str) -> None:
    early = "nothing orders|freed" if control == "let_go_early" else "nothing orders"
    texts: list[str] = []
    environment = {"FC_CONTROL": control}
    # An operation that overtakes another may also wait for ever for its flags.
    for ends in (SOON / 5, SOON / 5, SOON, ENDS):
        outcomes = run_outcomes(2, use, environment=environment, timeout=ends, group_timeout=3)
        texts += [outcome.error or "" for outcome in outcomes]
        if any(re.search(early, text) for text in texts):
            return
        assert all(text.startswith("killed after") for text in texts), texts
    pytest.fail(f"not reported: {texts}")


def _groups(world: World, opposite: bool) -> None:
    """Use two groups, each on a stream of its own."""
    device = init(world)
    groups = [dist.new_group(backend="cpu:fastcomm,sim:fastcomm") for _ in range(2)]
    streams = [torch.Stream(device) for _ in groups]
    for group in groups:
        dist.all_reduce(torch.ones(1, device=device), group=group)
    for turn in range(8):
        order = [1, 0] if opposite and world.rank == 1 else [0, 1]
        sums = {}
        for each in order:
            with streams[each]:
                sums[each] = torch.full((900,), float(turn + each), device=device)
                dist.all_reduce(sums[each], group=groups[each])
        for each in order:
            with streams[each]:
                assert sums[each].unique().tolist() == [2.0 * (turn + each)]


@QUEUES
def test_two_groups_on_two_streams(queues: str) -> None:
    run_ranks(2, _groups, False, environment={"CUDA_DEVICE_MAX_CONNECTIONS": queues})


def test_two_groups_in_opposite_orders() -> None:
    run_ranks(2, _groups, True, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"})


def _forked(world: World) -> str:
    """Return what a child of fork() is told; the parent continues."""
    device = init(world)
    dist.all_reduce(torch.ones(3, device=device))
    data = fastcomm.empty(3, device=device).fill_(2.0)  # whose memory the child must leave alone
    torch.sim.synchronize()
    path = Path(world.directory, f"child of {world.rank}")
    child = os.fork()
    if child == 0:
        with path.open("w") as file:
            caught = catch(dist.all_reduce, data)
            file.write(f"{caught.kind} {caught.operation}")
        del data
        dist.destroy_process_group()
        gc.collect()
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    dist.all_reduce(data)
    assert data.tolist() == [4.0] * 3
    return path.read_text()


def test_a_child_of_fork_keeps_away() -> None:
    assert run_ranks(2, _forked) == ["ForkedProcessError all_reduce"] * 2


def _waits(world: World) -> None:
    wait_that_expires(world, init(world))


def test_a_wait_with_a_timeout() -> None:
    run_ranks(2, _waits)


def _coalesced(world: World) -> None:
    device = init(world)
    tensors = [torch.full((700,), float(each + 1), device=device) for each in range(3)]
    dist.all_reduce(torch.ones(1, device=device))
    sim.load().sleep(world.rank, torch.sim.current_stream().stream_id, 20_000)
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    future = manager.works[0].get_future()
    sums = future.then(lambda done: [value.sum() for value in done.value()])
    found = [each.item() for each in sums.wait()]
    assert found == [1400.0 * (each + 1) for each in range(3)], found
    manager.wait()


def test_the_future_of_several_operations_waits_for_them() -> None:
    run_ranks(2, _coalesced)


def _dropped(world: World) -> list[float]:
    """Destroy the group while somebody holds a work of it."""
    device = init(world)
    dist.all_reduce(data := torch.ones(700, device=device))
    work = dist.all_reduce(data, async_op=True)
    if world.rank == 1:
        time.sleep(0.5)
    torch.sim.synchronize()
    group = dist.group.WORLD
    dist.destroy_process_group()
    del group
    gc.collect()
    assert work is not None
    work.wait()
    found: list[float] = data.unique().tolist()
    return found


def test_a_work_outlives_its_group() -> None:
    assert run_ranks(2, _dropped) == [[4.0]] * 2


def _root_elsewhere(world: World) -> list[Any]:
    """Put the root's list in host memory, of which the others know nothing."""
    device = init(world)
    root = world.rank == 0
    outputs = [torch.zeros(4) for _ in range(world.size)] if root else None
    dist.gather(torch.full((4,), float(world.rank), device=device), outputs, 0)
    inputs = [torch.full((4,), 5.0 + each) for each in range(world.size)] if root else None
    dist.scatter(own := torch.zeros(4, device=device), inputs, 0)
    torch.sim.synchronize()
    return [own.tolist(), [each.tolist() for each in outputs or []]]


def test_the_list_of_a_root_may_lie_elsewhere() -> None:
    first, second = run_ranks(2, _root_elsewhere)
    assert first == [[5.0] * 4, [[0.0] * 4, [1.0] * 4]] and second == [[6.0] * 4, []]

"""Host time of operations between devices, in microseconds of the processor.

The simulated devices do nothing here. The time is that of the code that launches, compiled as in a
release, and of the simulated runtime and torch's allocator for memory, streams and events.
Calls go through ``Backend.allreduce`` and its like in Python, whose bindings take about one
microsecond, and through ``torch.distributed``::

    python tests/sim/host_time.py           # writes benchmarks/results/device-host-time.json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.distributed_c10d as c10d  # noqa: E402
from support.ranks import World, run_ranks  # noqa: E402
from tabulate import tabulate  # noqa: E402

import fastcomm  # noqa: E402
import sim  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "device-host-time.json"
# Elements of float32. Operations in place take one round.
SIZES = {"short": 64, "in rounds": 1 << 20, "in place": 1 << 20}
GRADIENTS = 8  # tensors of a list; they lie end to end only in place
Row = dict[str, str | int | float]


def _median_us(call: Callable[[], object], calls: int, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begun = time.thread_time()
        for _ in range(calls):
            call()
        times.append((time.thread_time() - begun) / calls * 1e6)
    return statistics.median(times)


def _calls(
    world: World, count: int, empty: Callable[..., torch.Tensor]
) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return each operation's call of the backend, and of torch.distributed; both synchronous."""
    device = torch.device("sim", world.rank)
    part = empty(count, device=device).fill_(1.0)
    whole = empty(world.size * count, device=device).fill_(1.0)
    changed = torch.empty_like(part)
    grads = list(empty(count, device=device).fill_(1.0).chunk(GRADIENTS))
    if not fastcomm.is_shared(grads[0]):
        grads = [grad.clone() for grad in grads]
    options: tuple[Any, ...] = (False, 1.0, None, 2, None, False, [], [])
    backend = dist.group.WORLD._get_backend(device)
    reducing, gathering = c10d.AllreduceOptions(), c10d.AllgatherOptions()
    scattering, sending = c10d.ReduceScatterOptions(), c10d.BroadcastOptions()
    exchanging = c10d.AllToAllOptions()
    for each in (reducing, gathering, scattering, sending, exchanging):
        each.asyncOp = False
    return {
        "all_reduce": (
            lambda: backend.allreduce([part], reducing),
            lambda: dist.all_reduce(part),
        ),
        "all_gather_into_tensor": (
            lambda: backend._allgather_base(whole, part, gathering),
            lambda: dist.all_gather_into_tensor(whole, part),
        ),
        "reduce_scatter_tensor": (
            lambda: backend._reduce_scatter_base(part, whole, scattering),
            lambda: dist.reduce_scatter_tensor(part, whole),
        ),
        "broadcast": (
            lambda: backend.broadcast([part], sending),
            lambda: dist.broadcast(part, 0),
        ),
        "all_to_all_single": (
            lambda: backend.alltoall_base(changed, part, [], [], exchanging),
            lambda: dist.all_to_all_single(changed, part),
        ),
        f"fused_all_reduce of {GRADIENTS}": (
            lambda: backend.fused_reduce(grads, *options),
            lambda: fastcomm.fused_all_reduce_(grads, average=False),
        ),
    }


def _timed(world: World, calls: int, rounds: int) -> list[Row]:
    native = sim.load()
    torch.sim.set_device(world.rank)
    world.init("cpu:fastcomm,sim:fastcomm")
    dist.all_reduce(torch.ones(1, device=f"sim:{world.rank}"))
    places: dict[str, Callable[..., torch.Tensor]] = {"in place": fastcomm.empty}
    # Operations in place come last: they give the group memory, where meetings look tensors up.
    makers = {
        size: functools.partial(_calls, world, count, places.get(size, torch.empty))
        for size, count in SIZES.items()
    }
    rows: list[Row] = []
    for size, make in makers.items():
        native.do_nothing(False)
        operations = make()
        torch.sim.synchronize()
        dist.barrier()
        native.do_nothing()
        for operation, (of_backend, of_torch) in operations.items():
            row: Row = {"operation": operation, "message": size, "bytes": 4 * SIZES[size]}
            row["backend_us"] = round(_median_us(of_backend, calls, rounds), 2)
            row["torch_us"] = round(_median_us(of_torch, calls, rounds), 2)
            rows.append(row)
    dist.barrier()
    return rows


def measure(calls: int, rounds: int) -> list[Row]:
    """Return a row for each operation and size: medians of ``rounds`` times ``calls`` calls."""
    rows: list[Row] = run_ranks(2, _timed, calls, rounds)[0]
    return rows


if __name__ == "__main__":
    if not os.environ.get(sim.build.OPTIMIZED):
        os.execve(
            sys.executable,
            [sys.executable, *sys.argv],
            {**os.environ, sim.build.OPTIMIZED: "1"},
        )
    from sim import host_time  # ranks import their function from it

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print("compiling the simulation as a release is, a minute or two the first time", flush=True)
    sim.build.library()
    found = host_time.measure(arguments.calls, arguments.rounds)
    RESULT.write_text("".join(json.dumps(row) + "\n" for row in found))
    print(tabulate(found, headers="keys"))

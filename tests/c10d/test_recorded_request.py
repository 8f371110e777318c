"""Calls as torch's flight recorder has them: an entry of every operation."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.flight import ON, analysed, dump
from support.ranks import World, run_ranks

import fastcomm

pytestmark = pytest.mark.usefixtures("recorder_as_asked")


def _group() -> Any:
    return dist.group.WORLD


CALLS: list[tuple[str, Callable[[int, int], Any], list[Any], list[Any]]] = [
    # the name in the dump; the call; sizes in and out, of rank 0 of 3
    ("all_reduce", lambda r, n: dist.all_reduce(torch.ones(4, 2)), [[4, 2]], [[4, 2]]),
    ("broadcast", lambda r, n: dist.broadcast(torch.ones(5), 1), [[5]], [[5]]),
    ("reduce", lambda r, n: dist.reduce(torch.ones(6), 2), [[6]], [[6]]),
    (
        "all_gather",
        lambda r, n: dist.all_gather([torch.ones(2) for _ in range(n)], torch.ones(2)),
        [[2]],
        [[3, 2]],
    ),
    (
        "_all_gather_base",
        lambda r, n: dist.all_gather_into_tensor(torch.ones(2 * n), torch.ones(2)),
        [[2]],
        [[6]],
    ),
    (
        "reduce_scatter",
        lambda r, n: dist.reduce_scatter(torch.ones(7), [torch.ones(7) for _ in range(n)]),
        [[3, 7]],
        [[7]],
    ),
    (
        "_reduce_scatter_base",
        lambda r, n: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * n)),
        [[6]],
        [[2]],
    ),
    (
        "all_to_all",
        lambda r, n: dist.all_to_all_single(torch.ones(2 * n), torch.ones(2 * n)),
        [[6]],
        [[6]],
    ),
    (
        "all_to_all",
        lambda r, n: dist.all_to_all_single(
            torch.ones(n * (r + 1)), torch.ones(6), [r + 1] * n, [1, 2, 3]
        ),
        [[6]],
        [[3]],
    ),
    (
        "all_to_all",
        lambda r, n: dist.all_to_all(
            [torch.ones(r + 1) for _ in range(n)], [torch.ones(k + 1) for k in range(n)]
        ),
        [[6]],
        [[3, 1]],
    ),
    (
        "gather",
        lambda r, n: dist.gather(
            torch.ones(3), [torch.ones(3) for _ in range(n)] if r == 0 else None, 0
        ),
        [[3]],
        [[3, 3]],
    ),
    (
        "scatter",
        lambda r, n: dist.scatter(
            torch.ones(3), [torch.ones(3) for _ in range(n)] if r == 0 else None, 0
        ),
        [[3, 3]],
        [[3]],
    ),
    ("all_reduce_barrier", lambda r, n: dist.barrier(), [], []),
    (
        "allreduce_coalesced",
        lambda r, n: dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)]),
        [[2], [3]],
        [[2], [3]],
    ),
    (
        "ALLGATHER_coalesced",
        lambda r, n: dist.all_gather_coalesced(
            [[torch.ones(2), torch.ones(3)] for _ in range(n)], [torch.ones(2), torch.ones(3)]
        ),
        [[2], [3]],
        [[5]] * 3,
    ),
    (
        "all_gather_into_tensor_coalesced",
        lambda r, n: _group().allgather_into_tensor_coalesced([torch.ones(2 * n)], [torch.ones(2)]),
        [[2]],
        [[6]],
    ),
    (
        "reduce_scatter_tensor_coalesced",
        lambda r, n: _group().reduce_scatter_tensor_coalesced([torch.ones(2)], [torch.ones(2 * n)]),
        [[6]],
        [[2]],
    ),
    (
        "ALLGATHER_coalesced",  # of unequal parts
        lambda r, n: dist.all_gather([torch.ones(k + 1) for k in range(n)], torch.ones(r + 1)),
        [[6]],
        [[6]],
    ),
    (
        "REDUCE_SCATTER_coalesced",
        lambda r, n: dist.reduce_scatter(
            torch.ones(r + 1), [torch.ones(k + 1) for k in range(n)]
        ),
        [[6]],
        [[6]],
    ),
    (
        "allreduce_coalesced",
        lambda r, n: fastcomm.fused_all_reduce_([torch.ones(2), torch.ones(3)]),
        [[2], [3]],
        [[2], [3]],
    ),
]  # fmt: skip


def _every_operation(world: World) -> dict[str, Any]:
    world.init()
    for _, call, _, _ in CALLS:
        work = call(world.rank, world.size)
        if isinstance(work, dist.Work):
            work.wait()
    dist.all_reduce(torch.ones(1, dtype=torch.bfloat16), async_op=True).wait()
    if world.rank == 0:
        dist.send(torch.ones(4), 1)
    if world.rank == 1:
        dist.recv(torch.ones(4), 0)
    return dump()


def test_every_operation_has_an_entry_that_torch_understands(tmp_path: Path) -> None:
    found = run_ranks(3, _every_operation, environment=ON)
    for rank, each in enumerate(found):
        entries = each["entries"]
        collectives = [entry for entry in entries if not entry["is_p2p"]]
        names = [f"nccl:{row[0]}" for row in CALLS] + ["nccl:all_reduce"]
        assert [entry["profiling_name"] for entry in collectives] == names
        assert [entry["collective_seq_id"] for entry in collectives] == list(
            range(1, len(names) + 1)
        )
        assert all(entry["state"] == "completed" for entry in entries), entries
        assert all(entry["retired"] and entry["duration_ms"] >= 0 for entry in entries)
        assert all(entry["process_group"] == ("0", "default_pg") for entry in entries)
        assert each["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
        assert "fastcomm" in each["comm_lib_version"] and "nccl:" in each["comm_lib_version"]
        last = collectives[-1]
        assert (last["input_dtypes"], last["output_dtypes"]) == (["BFloat16"], ["BFloat16"])
        messages = [entry["profiling_name"] for entry in entries if entry["is_p2p"]]
        assert messages == [["nccl:send 0->1"], ["nccl:recv 1<-0"], []][rank]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(each))
    for entry, (_, _, given, taken) in zip(found[0]["entries"], CALLS, strict=False):
        assert (entry["input_sizes"], entry["output_sizes"]) == (given, taken), entry
    # Without the messages: the analyser expects all ranks of a group in each.
    for rank, each in enumerate(found):
        each["entries"] = [entry for entry in each["entries"] if not entry["is_p2p"]]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(each))
    data, words = analysed(tmp_path)
    assert len(data.collectives) == len(CALLS) + 1, words
    assert all(each.pass_check and not each.missing_ranks for each in data.collectives), words


def _refused(world: World) -> dict[str, Any]:
    world.init()
    dist.all_reduce(torch.ones(1))
    with pytest.raises(ValueError):
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(3))
    return dump()


def test_what_is_refused_is_not_completed() -> None:
    for found in run_ranks(2, _refused, environment=ON):
        assert [entry["state"] for entry in found["entries"]] == ["completed", "scheduled"]


def _over_gloo(world: World) -> dict[str, Any]:
    world.init()
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    return dump()


def test_calls_over_gloo_have_one_entry_each() -> None:
    for found in run_ranks(2, _over_gloo, environment={**ON, "FASTCOMM_TRANSPORT": "gloo"}):
        names = [entry["profiling_name"] for entry in found["entries"]]
        assert names == ["nccl:all_reduce", "nccl:all_reduce_barrier"]
        assert {entry["state"] for entry in found["entries"]} == {"completed"}

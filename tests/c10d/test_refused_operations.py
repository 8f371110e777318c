"""Calls that differ between ranks, and impossible calls: what is raised, and when."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.ranks import World, run_ranks


def _sparse(shape: tuple[int, ...], dims: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.ones(1, *shape[dims:], dtype=dtype)
    indices = torch.zeros(dims, 1, dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def _like(count: int, size: int) -> list[torch.Tensor]:
    return [torch.zeros(count) for _ in range(size)]


# By name: what rank r of s calls, and what all of their messages contain.
def _calls(name: str, r: int, s: int, group: Any) -> Any:
    """Return the calls: rank 0's differs from the others'."""
    odd = r == 0
    e4, e5 = torch.zeros(4).to(torch.float8_e4m3fn), torch.zeros(4).to(torch.float8_e5m2)
    a, b = {"group": group}, torch.zeros
    return {
        "root": lambda: dist.reduce(b(4), 0 if odd else 1, **a),
        "gather root": lambda: dist.gather(
            b(4), _like(4, s) if r in (0, 1) else None, 0 if odd else 1, **a
        ),
        "gather size": lambda: dist.gather(
            b(4 + odd), _like(4 + odd, s) if r == 1 else None, 1, **a
        ),
        "scatter size": lambda: dist.scatter(
            b(4 + odd), _like(4 + odd, s) if r == 1 else None, 1, **a
        ),
        "splits": lambda: dist.all_to_all_single(
            b(2 * s), b(2 * s), [2] * s, [3, 1, *[2] * (s - 2)] if odd else [2] * s, **a
        ),
        "all_to_all": lambda: dist.all_to_all(_like(2, s), _like(2 + odd, s), **a),
        "dtype": lambda: dist.all_gather(
            [b(4, dtype=torch.int32 if odd else torch.float32) for _ in range(s)],
            b(4, dtype=torch.int32 if odd else torch.float32),
            **a,
        ),
        "fp8": lambda: dist.broadcast(e4 if odd else e5, 1, **a),
        "uneven": lambda: dist.all_gather(
            [b(k + 1 + (odd and k == 1)) for k in range(s)], b(r + 1), **a
        ),
        "list length": lambda: dist.all_reduce_coalesced([b(2)] * (2 + odd), **a),
        "list sizes": lambda: dist.all_reduce_coalesced([b(2), b(3)] if odd else [b(3), b(2)], **a),
        "list dtypes": lambda: dist.all_gather_coalesced(
            [[b(2, dtype=torch.int32 if odd else torch.float32)] for _ in range(s)],
            [b(2, dtype=torch.int32 if odd else torch.float32)],
            **a,
        ),
        "sparse shape": lambda: dist.all_reduce(
            _sparse((6,) if odd else (2, 3), 1 if odd else 2), **a
        ),
        "sparse dims": lambda: dist.all_reduce(_sparse((2, 3), 1 if odd else 2), **a),
        "sparse dtype": lambda: dist.all_reduce(
            _sparse((3,), 1, torch.float64 if odd else torch.float32), **a
        ),
        "sparse and dense": lambda: dist.all_reduce(_sparse((3,), 1) if odd else b(3), **a),
        "operation": lambda: dist.barrier(**a) if odd else dist.all_reduce(b(3), **a),
    }[name]


TOLD = {
    "root": ("root 0", "root 1"),
    "gather root": ("root 0", "root 1"),
    "gather size": ("5 elements", "4 elements"),
    "scatter size": ("5 elements", "4 elements"),
    "splits": ("sends [12, 4", "sends [8, 8"),
    "all_to_all": ("sends [12, 12", "sends [8, 8"),
    "dtype": ("int32", "float32"),
    "fp8": ("float8_e4m3fn", "float8_e5m2"),
    "uneven": ("[1, 3", "[1, 2"),
    "list length": ("tensors of [2, 2, 2]", "tensors of [2, 2]"),
    "list sizes": ("tensors of [2, 3]", "tensors of [3, 2]"),
    "list dtypes": ("int32", "float32"),
    "sparse shape": ("shape [6]", "shape [2, 3]"),
    "sparse dims": ("sparse in 1 of", "sparse in 2 of"),
    "sparse dtype": ("float64", "float32"),
    "sparse and dense": ("sparse", "3 elements"),
    "operation": ("barrier", "all_reduce"),
}


def _mismatches(world: World) -> dict[str, Caught]:
    world.init()
    told = {}
    for name in TOLD:
        group = dist.new_group(timeout=timedelta(seconds=60))
        told[name] = catch(_calls(name, world.rank, world.size, group))
    dist.barrier()
    return told


def test_calls_that_differ_are_told_on_all_ranks() -> None:
    per_rank = run_ranks(3, _mismatches)
    for name, parts in TOLD.items():
        for told in per_rank:
            assert told[name].kind == "CollectiveMismatchError", (name, told[name])
        for part in parts:
            assert part in per_rank[0][name].text, (name, part, per_rank[0][name].text)


def _refuse(world: World) -> list[tuple[str, Caught]]:
    """Refuse on all ranks but the last, which goes on as before: nothing was sent."""
    world.init()
    rank, size, b = world.rank, world.size, torch.zeros
    wide = b(1).expand(4)
    parts = [b(1).expand(4) for _ in range(size)]
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    calls = {
        "all_reduce": lambda: dist.all_reduce(wide),
        "all_reduce, async": lambda: dist.all_reduce(wide, async_op=True),
        "reduce": lambda: dist.reduce(wide, rank),
        "broadcast": lambda: dist.broadcast(wide, (rank + 1) % size),
        "all_gather": lambda: dist.all_gather(parts, b(4)),
        "gather": lambda: dist.gather(b(4), parts, rank),
        "scatter": lambda: dist.scatter(wide, _like(4, size), rank),
        "all_to_all": lambda: dist.all_to_all(parts, _like(4, size)),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([b(2), wide]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(wide, b(4 * size)),
        "recv": lambda: dist.recv(wide, (rank + 1) % size),
        "list": lambda: dist.all_gather([b(4)], b(4)),
        "sizes": lambda: backend.gather(
            [[b(4)] * (size - 1) + [b(5)]], [b(4)], _root(dist.GatherOptions(), rank)
        ),
        "list at no root": lambda: backend.gather(
            [_like(4, size)], [b(4)], _root(dist.GatherOptions(), size - 1)
        ),
        "root": lambda: backend.reduce([b(4)], _root(dist.ReduceOptions(), size)),
        "dtypes": lambda: backend.alltoall_base(
            b(size), b(size, dtype=torch.int32), [], [], dist.AllToAllOptions()
        ),
        "none": lambda: backend.allreduce_coalesced([], dist.AllreduceCoalescedOptions()),
        "none to gather": lambda: backend.allgather_coalesced([[] for _ in range(size)], []),
    }
    told = []
    for name, call in calls.items():
        if rank != size - 1:
            told.append((name, catch(call)))
        dist.all_reduce(good := torch.ones(1))
        assert good.item() == size, name
    return told


def _root(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


def test_what_is_refused_leaves_the_group_as_it_was() -> None:
    for told in run_ranks(3, _refuse):
        for name, caught in told:
            assert caught.kind == "CollectiveArgumentError", (name, caught)


def _late_trouble(world: World) -> str:
    """Check that a result that cannot be written is its own work's error, on whatever thread."""
    world.init()
    whole = torch.ones(8)
    part = whole[::2]
    if world.rank == 1:
        time.sleep(0.2)
    work = dist.all_reduce(part, async_op=True)
    text = ""
    if world.rank == 0:
        part.resize_(3)
        time.sleep(0.5)  # the progress thread ends it
        text = catch(work.wait).text
    else:
        work.wait()
        assert part.tolist() == [2.0] * 4
    dist.all_reduce(good := torch.ones(1))
    assert good.item() == 2
    with torch.inference_mode():
        frozen = torch.ones(8)
        work = dist.all_reduce(frozen[::2], async_op=True)
        time.sleep(0.1)
        work.wait()
        assert frozen.tolist() == [2.0, 1.0] * 4
    return text


def test_a_result_without_a_place_is_an_error_of_its_work() -> None:
    assert "size" in run_ranks(2, _late_trouble)[0]

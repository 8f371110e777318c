"""Ranks that disagree, and tensors that no path takes: an exception on every rank, no crash."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import disagreement
from support.caught import Caught, catch
from support.disagreement import Call
from support.ranks import World, run_ranks

LARGE = 1 << 18

DISAGREEMENTS: disagreement.Disagreements = {
    "size": (
        lambda x: dist.all_reduce(x[:10]),
        lambda x: dist.all_reduce(x[:12]),
        "10 elements",
        "12 elements",
    ),
    "small against large": (
        lambda x: dist.all_reduce(x),
        lambda x: dist.all_reduce(x[:12]),
        f"{LARGE} elements",
        "12 elements",
    ),
    "dtype": (
        lambda x: dist.all_reduce(x),
        lambda x: dist.all_reduce(x.view(torch.int32)),
        "float32",
        "int32",
    ),
    "reduction": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.SUM),
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.AVG),
        "sum",
        "avg",
    ),
    "root": (
        lambda x: dist.broadcast(x, src=0),
        lambda x: dist.broadcast(x, src=1),
        "root 0",
        "root 1",
    ),
    "operation": (
        lambda x: dist.all_reduce(x),
        lambda x: dist.broadcast(x, src=0),
        "all_reduce",
        "broadcast",
    ),
    "barrier": (
        lambda x: dist.barrier(),
        lambda x: dist.all_reduce(x[:4]),
        "barrier",
        "all_reduce",
    ),
    "all_gather": (
        lambda x: dist.all_gather(list(x.view(-1, 16)[: dist.get_world_size()]), x[64:80]),
        lambda x: dist.all_gather(list(x.view(-1, 8)[: dist.get_world_size()]), x[64:72]),
        "16 elements",
        "8 elements",
    ),
    "async against sync": (
        lambda x: dist.all_reduce(x[:10], async_op=True).wait(),
        lambda x: dist.all_reduce(x[:12]),
        "10 elements",
        "12 elements",
    ),
}


def _disagree(world: World) -> disagreement.Told:
    return disagreement.play(world, DISAGREEMENTS, LARGE)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_disagree_all_hear_it_and_keep_their_memory(size: int) -> None:
    disagreement.check(run_ranks(size, _disagree), DISAGREEMENTS)


def _gather(x: torch.Tensor, outputs: list[torch.Tensor]) -> None:
    dist.all_gather(outputs, x)


def _backend() -> Any:
    """Return the backend itself: torch refuses calls with some tensors before they reach it."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def _reduce(dtype: torch.dtype, op: Any) -> Call:
    return lambda x: dist.all_reduce(torch.ones(8, dtype=dtype), op=op)


# What torch.distributed refuses by itself, before any backend is asked.
BY_TORCH = {"mixed dtypes", "sparse broadcast"}
# Each is refused on every rank, by an error of one of these kinds, with these words.
REFUSED: dict[str, tuple[Call, tuple[str, ...]]] = {
    "meta tensor": (lambda x: _backend().allreduce([x.to("meta")]), ("all_reduce", "meta")),
    "meta broadcast": (lambda x: _backend().broadcast([x.to("meta")]), ("broadcast", "meta")),
    "meta gather": (
        lambda x: _backend().allgather([[x.to("meta")] * 2], [x.to("meta")]),
        ("all_gather", "meta"),
    ),
    "mixed devices": (
        lambda x: _gather(x, [torch.empty_like(x), torch.empty_like(x, device="meta")]),
        ("all_gather", "meta"),
    ),
    "mixed dtypes": (
        lambda x: _gather(x, [torch.empty_like(x), torch.empty_like(x).double()]),
        ("dtype",),
    ),
    "too few outputs": (lambda x: _gather(x, [torch.empty_like(x)]), ("1 output",)),
    "too many outputs": (
        lambda x: _gather(x, [torch.empty_like(x) for _ in range(3)]),
        ("3 output",),
    ),
    "size of its own output": (
        lambda x: _gather(x, [torch.empty(3), torch.empty(3)]),
        ("3 elements", "8"),
    ),
    "avg of bool": (_reduce(torch.bool, dist.ReduceOp.AVG), ("all_reduce", "avg", "bool")),
    "band of float": (_reduce(torch.float32, dist.ReduceOp.BAND), ("band", "float32")),
    "bor of half": (_reduce(torch.float16, dist.ReduceOp.BOR), ("bor", "float16")),
    "bxor of double": (_reduce(torch.float64, dist.ReduceOp.BXOR), ("bxor", "float64")),
    "premul_sum of integers": (
        _reduce(torch.int32, dist._make_nccl_premul_sum(2.0)),
        ("premul_sum", "int32"),
    ),
    "max of complex": (
        lambda x: _backend().allreduce([x.to(torch.complex64)], dist.ReduceOp.MAX),
        ("max", "complex64"),
    ),
    "product of float8": (
        _reduce(torch.float8_e4m3fn, dist.ReduceOp.PRODUCT),
        ("product", "float8_e4m3fn"),
    ),
    "sum of float8": (_reduce(torch.float8_e5m2, dist.ReduceOp.SUM), ("sum", "float8_e5m2")),
    "sparse, avg": (
        lambda x: dist.all_reduce(x.to_sparse(), op=dist.ReduceOp.AVG),
        ("avg", "Sparse"),
    ),
    "sparse, max": (
        lambda x: dist.all_reduce(x.to_sparse(), op=dist.ReduceOp.MAX),
        ("max", "Sparse"),
    ),
    "sparse broadcast": (lambda x: dist.broadcast(x.to_sparse(), src=0), ("broadcast", "Sparse")),
    "root": (lambda x: dist.broadcast(x, src=7), ("7",)),
}


def _refuse(world: World) -> dict[str, tuple[Caught, list[float]]]:
    world.init()
    told = {}
    for name, (call, _) in REFUSED.items():
        caught = catch(call, torch.full((8,), float(world.rank)))
        good = torch.full((2,), float(world.rank))
        dist.all_reduce(good)
        told[name] = (caught, good.tolist())
    return told


def test_what_no_path_takes_is_refused_and_the_group_stays_usable() -> None:
    for told in run_ranks(2, _refuse):
        for name, (caught, good) in told.items():
            for word in REFUSED[name][1]:
                assert word in caught.text, (name, caught)
            assert good == [1.0, 1.0], name
            if name not in BY_TORCH:
                assert "FastcommError" in caught.bases, (name, caught)

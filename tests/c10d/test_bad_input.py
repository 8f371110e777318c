"""Ranks that disagree, and calls that no path takes: an exception on every rank, no crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks

LARGE = 1 << 18

Call = Callable[[torch.Tensor], Any]


def _like(count: int, **options: Any) -> list[torch.Tensor]:
    """Return a tensor for each rank."""
    return [torch.zeros(count, **options) for _ in range(dist.get_world_size())]


def _sparse(shape: tuple[int, ...], dims: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.ones(1, *shape[dims:], dtype=dtype)
    indices = torch.zeros(dims, 1, dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def _unlike(call: Any, first: str, others: str) -> tuple[Call, Call, str, str]:
    """Return a disagreement: a call that is told whether it is that of the odd rank, rank 0."""
    return partial(call, odd=True), partial(call, odd=False), first, others


def _at_root(lists: list[torch.Tensor], *roots: int) -> list[torch.Tensor] | None:
    return lists if dist.get_rank() in roots else None


def _type(odd: bool) -> torch.dtype:
    return torch.int32 if odd else torch.float32


def _splits(x: torch.Tensor, odd: bool) -> None:
    size = dist.get_world_size()
    sent = [3, 1, *[2] * (size - 2)] if odd else [2] * size
    dist.all_to_all_single(torch.zeros(2 * size), x[: 2 * size], [2] * size, sent)


def _uneven(x: torch.Tensor, odd: bool) -> None:
    counts = [peer + 1 + (odd and peer == 1) for peer in range(dist.get_world_size())]
    dist.all_gather([torch.zeros(n) for n in counts], x[: dist.get_rank() + 1])


# What rank 0 calls, what the others call, and what of each must be in the message.
DISAGREEMENTS: dict[str, tuple[Call, Call, str, str]] = {
    "size": _unlike(
        lambda x, odd: dist.all_reduce(x[: 10 if odd else 12]), "10 elements", "12 elements"
    ),
    "small against large": _unlike(
        lambda x, odd: dist.all_reduce(x if odd else x[:12]), f"{LARGE} elements", "12 elements"
    ),
    "dtype": _unlike(lambda x, odd: dist.all_reduce(x.view(_type(odd))), "int32", "float32"),
    "reduction": _unlike(
        lambda x, odd: dist.all_reduce(x, dist.ReduceOp.SUM if odd else dist.ReduceOp.AVG),
        "sum",
        "avg",
    ),
    "root": _unlike(lambda x, odd: dist.broadcast(x, 1 - odd), "root 0", "root 1"),
    "root of reduce": _unlike(lambda x, odd: dist.reduce(x[:4], 1 - odd), "root 0", "root 1"),
    "root of gather": _unlike(
        lambda x, odd: dist.gather(x[:4], _at_root(_like(4), 0, 1), 1 - odd), "root 0", "root 1"
    ),
    "operation": _unlike(
        lambda x, odd: dist.all_reduce(x) if odd else dist.broadcast(x, src=0),
        "all_reduce",
        "broadcast",
    ),
    "barrier": _unlike(
        lambda x, odd: dist.barrier() if odd else dist.all_reduce(x[:4]), "barrier", "all_reduce"
    ),
    "all_gather": _unlike(
        lambda x, odd: dist.all_gather(_like(8 + 8 * odd), x[: 8 + 8 * odd]),
        "16 elements",
        "8 elements",
    ),
    "all_gather, dtype": _unlike(
        lambda x, odd: dist.all_gather(_like(4, dtype=_type(odd)), x[:4].view(_type(odd))),
        "int32",
        "float32",
    ),
    "async against sync": _unlike(
        lambda x, odd: (
            dist.all_reduce(x[:10], async_op=True).wait() if odd else dist.all_reduce(x[:12])
        ),
        "10 elements",
        "12 elements",
    ),
    "gather": _unlike(
        lambda x, odd: dist.gather(x[: 4 + odd], _at_root(_like(4 + odd), 1), 1),
        "5 elements",
        "4 elements",
    ),
    "scatter": _unlike(
        lambda x, odd: dist.scatter(x[: 4 + odd], _at_root(_like(4 + odd), 1), 1),
        "5 elements",
        "4 elements",
    ),
    "splits": _unlike(_splits, "sends [12, 4", "sends [8, 8"),
    "all_to_all": _unlike(
        lambda x, odd: dist.all_to_all(_like(2), _like(2 + odd)), "sends [12, 12", "sends [8, 8"
    ),
    "fp8": _unlike(
        lambda x, odd: dist.broadcast(x.to(torch.float8_e4m3fn if odd else torch.float8_e5m2), 1),
        "float8_e4m3fn",
        "float8_e5m2",
    ),
    "uneven": _unlike(_uneven, "[1, 3", "[1, 2"),
    "list length": _unlike(
        lambda x, odd: dist.all_reduce_coalesced([torch.zeros(2)] * (2 + odd)),
        "tensors of [2, 2, 2]",
        "tensors of [2, 2]",
    ),
    "list sizes": _unlike(
        lambda x, odd: dist.all_reduce_coalesced([x[: 3 - odd], x[3 : 5 + odd]]),
        "tensors of [2, 3]",
        "tensors of [3, 2]",
    ),
    "list dtypes": _unlike(
        lambda x, odd: dist.all_gather_coalesced(
            [[part] for part in _like(2, dtype=_type(odd))], [x[:2].view(_type(odd))]
        ),
        "int32",
        "float32",
    ),
    "sparse shape": _unlike(
        lambda x, odd: dist.all_reduce(_sparse((6,), 1) if odd else _sparse((2, 3), 2)),
        "shape [6]",
        "shape [2, 3]",
    ),
    "sparse dims": _unlike(
        lambda x, odd: dist.all_reduce(_sparse((2, 3), 2 - odd)),
        "sparse in 1 of",
        "sparse in 2 of",
    ),
    "sparse dtype": _unlike(
        lambda x, odd: dist.all_reduce(_sparse((3,), 1, torch.float64 if odd else torch.float32)),
        "float64",
        "float32",
    ),
    "sparse and dense": _unlike(
        lambda x, odd: dist.all_reduce(_sparse((3,), 1) if odd else x[:3]), "sparse", "3 elements"
    ),
}


def _disagree(world: World) -> dict[str, tuple[Caught, bool]]:
    """Return the error of each, in a group of its own, and whether the tensor is as it was."""
    told = {}
    for number, (name, (first, others, _, _)) in enumerate(DISAGREEMENTS.items()):
        world.init(name=f"store{number}")
        tensor = torch.arange(LARGE, dtype=torch.float32) + world.rank
        before = tensor.clone()
        caught = catch(first if world.rank == 0 else others, tensor)
        told[name] = (caught, torch.equal(tensor, before))
        dist.destroy_process_group()
    return told


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_that_disagree_all_hear_it_and_keep_their_memory(size: int) -> None:
    for rank, told in enumerate(run_ranks(size, _disagree)):
        for name, (caught, untouched) in told.items():
            assert caught.kind == "CollectiveMismatchError", (rank, name, caught)
            for part in DISAGREEMENTS[name][2:]:
                assert part in caught.text, (rank, name, caught.text)
            assert untouched, (rank, name)


def _backend() -> Any:
    """Return the backend itself: torch refuses some calls before they reach it."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def _root(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


def _after() -> int:
    return (dist.get_rank() + 1) % dist.get_world_size()


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Return what nothing can be written to: each element is the same."""
    return x[:1].expand(4)


def _meta(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.to("meta") for _ in range(dist.get_world_size())]


# What torch.distributed refuses by itself, before any backend is asked.
BY_TORCH = {"mixed dtypes", "sparse broadcast"}
WRONG = "CollectiveArgumentError"
# Each is refused where it is called, by an error with these words; nothing is sent.
REFUSED: dict[str, tuple[Any, ...]] = {
    "meta tensor": (lambda x: _backend().allreduce([x.to("meta")]), "all_reduce", "meta"),
    "meta broadcast": (lambda x: _backend().broadcast([x.to("meta")]), "broadcast", "meta"),
    "meta gather": (lambda x: _backend().allgather([_meta(x)], _meta(x)[:1]), "all_gather", "meta"),
    "mixed devices": (
        lambda x: dist.all_gather([*_like(8)[1:], x.to("meta")], x),
        "all_gather",
        "meta",
    ),
    "mixed dtypes": (lambda x: dist.all_gather([*_like(8)[1:], x.double()], x), "dtype"),
    "too few outputs": (lambda x: dist.all_gather([x.clone()], x), WRONG, "1 output"),
    "too many outputs": (lambda x: dist.all_gather([x.clone()] * 4, x), "4 output"),
    "size of its own output": (lambda x: dist.all_gather(_like(3), x), "3 elements", "8"),
    "sparse, avg": (
        lambda x: dist.all_reduce(x.to_sparse(), op=dist.ReduceOp.AVG),
        "avg",
        "Sparse",
    ),
    "sparse, max": (
        lambda x: dist.all_reduce(x.to_sparse(), op=dist.ReduceOp.MAX),
        "max",
        "Sparse",
    ),
    "sparse broadcast": (lambda x: dist.broadcast(x.to_sparse(), src=0), "broadcast", "Sparse"),
    "root": (lambda x: dist.broadcast(x, src=7), "7"),
    "root of reduce": (
        lambda x: _backend().reduce([x], _root(dist.ReduceOptions(), dist.get_world_size())),
        WRONG,
    ),
    "all_reduce": (lambda x: dist.all_reduce(_wide(x)), WRONG),
    "all_reduce, async": (lambda x: dist.all_reduce(_wide(x), async_op=True), WRONG),
    "reduce": (lambda x: dist.reduce(_wide(x), dist.get_rank()), WRONG),
    "broadcast": (lambda x: dist.broadcast(_wide(x), _after()), WRONG),
    "all_gather": (lambda x: dist.all_gather([_wide(y) for y in _like(1)], x[:4]), WRONG),
    "gather": (lambda x: dist.gather(x[:4], [_wide(y) for y in _like(1)], dist.get_rank()), WRONG),
    "scatter": (lambda x: dist.scatter(_wide(x), _like(4), dist.get_rank()), WRONG),
    "all_to_all": (lambda x: dist.all_to_all([_wide(y) for y in _like(1)], _like(4)), WRONG),
    "all_reduce_coalesced": (lambda x: dist.all_reduce_coalesced([x, _wide(x)]), WRONG),
    "reduce_scatter_tensor": (
        lambda x: dist.reduce_scatter_tensor(_wide(x), torch.cat(_like(4))),
        WRONG,
    ),
    "recv": (lambda x: dist.recv(_wide(x), _after()), WRONG),
    "sizes": (
        lambda x: _backend().gather(
            [[*_like(8)[1:], torch.zeros(5)]], [x], _root(dist.GatherOptions(), dist.get_rank())
        ),
        WRONG,
    ),
    "list at no root": (
        lambda x: _backend().gather(
            [_like(8)], [x], _root(dist.GatherOptions(), dist.get_world_size() - 1)
        ),
        WRONG,
    ),
    "dtypes": (
        lambda x: _backend().alltoall_base(x[:3], x[:3].int(), [], [], dist.AllToAllOptions()),
        WRONG,
    ),
    "none": (lambda x: _backend().allreduce_coalesced([], dist.AllreduceCoalescedOptions()), WRONG),
    "none to gather": (lambda x: _backend().allgather_coalesced([[] for _ in _like(1)], []), WRONG),
}


@on_ranks(3)
def test_what_no_path_takes_is_refused_and_the_group_stays_as_it_was(world: World) -> None:
    """It is refused on all ranks but the last, which goes on as before."""
    world.init()
    for name, (call, *words) in REFUSED.items():
        if world.rank != world.size - 1:
            caught = catch(call, torch.full((8,), float(world.rank)))
            assert "FastcommError" in caught.bases or name in BY_TORCH, (name, caught)
            for word in words:
                assert word in f"{caught.kind}: {caught.text}", (name, caught)
        dist.all_reduce(good := torch.ones(1))
        assert good.item() == world.size, name


@on_ranks(2)
def test_a_result_without_a_place_is_an_error_of_its_work(world: World) -> None:
    """Check that a result that cannot be written is its own work's error, on whatever thread."""
    world.init()
    whole = torch.ones(8)
    part = whole[::2]
    if world.rank == 1:
        time.sleep(0.2)
    work = dist.all_reduce(part, async_op=True)
    if world.rank == 0:
        part.resize_(3)
        time.sleep(0.5)  # the progress thread ends it
        assert "size" in catch(work.wait).text
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

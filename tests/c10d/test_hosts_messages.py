"""Messages and uneven parts over several hosts: who gets what, and sizes that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.namespaces import Host
from support.patience import SOON
from support.ranks import World, run_ranks
from support.reductions import DTYPES, OPS, exists, inputs, op_of, reduced, same
from support.stores import join_hosts

import fastcomm

pytestmark = pytest.mark.serial  # network namespaces

# In bytes, around the limits of csrc/c10d/engines/hosts: in an envelope, short, in chunks.
SIZES = [8, 2048, 2056, 64 * 1024, 64 * 1024 + 8, (4 << 20) + 8]


def _filled(dtype: torch.dtype, count: int, giver: int, getter: int = 0) -> torch.Tensor:
    return torch.full((count,), giver * 10 + getter + 1).to(dtype)


def _rooted(world: World, hosts: list[Host], port: int, places: str) -> None:
    """Each rank in turn is the root."""
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for number, nbytes in enumerate([0, *SIZES]):
        dtype = [torch.float32, torch.bfloat16, torch.int64, torch.bool][number % 4]
        count = nbytes // dtype.itemsize
        for root in range(size):
            gathered = [torch.zeros(count, dtype=dtype) for _ in range(size if rank == root else 0)]
            dist.gather(_filled(dtype, count, rank), gathered or None, dst=root)
            assert all(torch.equal(each, _filled(dtype, count, peer))
                       for peer, each in enumerate(gathered)), (dtype, count)  # fmt: skip
            given = [_filled(dtype, count, root, peer) for peer in range(size)]
            part = torch.zeros(count, dtype=dtype)
            dist.scatter(part, given if rank == root else None, src=root)
            assert torch.equal(part, given[rank]), (dtype, count)


def _reduce(world: World, hosts: list[Host], port: int, places: str) -> None:
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for dtype in DTYPES:
        for number, nbytes in enumerate([0, *SIZES[:5]] if dtype.is_floating_point else SIZES[:2]):
            count = nbytes // dtype.itemsize
            root = (number + dtype.itemsize) % size
            terms = [inputs(dtype, count, peer) for peer in range(size)]
            for op in OPS if count < 10_000 else ("sum", "max"):
                if not exists(op, dtype):
                    continue
                mine = terms[rank].clone()
                dist.reduce(mine, root, op=op_of(op))
                wanted = reduced(terms, op) if rank == root else terms[rank]
                assert same(mine, wanted, op), (dtype, count, op)
    terms = [torch.arange(4_000_001.0) * (peer + 1) for peer in range(size)]  # many chunks
    for root in (0, size - 1):
        total = terms[rank].clone()
        dist.reduce(total, root)
        assert rank != root or same(total, reduced(terms, "sum"), "sum")


def _count(giver: int, getter: int, unit: int) -> int:
    """Return the elements of one message: some are empty."""
    return (giver * 3 + getter) % 4 * unit


def _to_all(world: World, hosts: list[Host], port: int, places: str) -> None:
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for unit in (1, 300, 20_000, 400_000 // size):
        sent = [_filled(torch.float32, _count(rank, to, unit), rank, to) for to in range(size)]
        wanted = [_filled(torch.float32, _count(of, rank, unit), of, rank) for of in range(size)]
        got = [torch.zeros_like(each) for each in wanted]
        dist.all_to_all(got, sent)
        assert all(map(torch.equal, got, wanted)), unit
        whole = torch.zeros(sum(map(len, wanted)))
        dist.all_to_all_single(whole, torch.cat(sent), [*map(len, wanted)], [*map(len, sent)])
        assert torch.equal(whole, torch.cat(wanted)), unit
        even = torch.zeros(size * unit)
        dist.all_to_all_single(even, torch.cat([_filled(torch.float32, unit, rank, to)
                                                for to in range(size)]))  # fmt: skip
        assert torch.equal(even, torch.cat([_filled(torch.float32, unit, of, rank)
                                            for of in range(size)]))  # fmt: skip


def _uneven(world: World, hosts: list[Host], port: int, places: str) -> None:
    """Parts of unequal sizes, none among them, and sparse tensors."""
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for unit in (1, 700, 40_000, 500_000):
        counts = [peer % 3 * unit + (peer == 1) for peer in range(size)]
        each = [_filled(torch.float32, count, peer) for peer, count in enumerate(counts)]
        got = [torch.zeros(count) for count in counts]
        dist.all_gather(got, each[rank])
        assert all(map(torch.equal, got, each)), counts
        terms = [[inputs(torch.bfloat16, count, peer) for count in counts] for peer in range(size)]
        part = torch.zeros(counts[rank], dtype=torch.bfloat16)
        dist.reduce_scatter(part, terms[rank])
        assert same(part, reduced([term[rank] for term in terms], "sum"), "sum"), counts
    for count in (5, 5_000):
        generator = torch.Generator().manual_seed(count)
        dense = [torch.randn(count, 3, generator=generator) for _ in range(size)]
        for peer, term in enumerate(dense):
            term[torch.rand(count, generator=generator) < peer / size] = 0
        sparse = dense[rank].to_sparse()
        dist.all_reduce(sparse)
        assert same(sparse.to_dense(), reduced(dense, "sum"), "sum")


ALL = pytest.mark.parametrize("what", [_rooted, _reduce, _to_all, _uneven])


@ALL
@pytest.mark.parametrize("places", ["0011", "001011"])
def test_messages(hosts: list[Host], places: str, what: Any) -> None:
    run_ranks(len(places), what, hosts, 29996 + len(places), places)


@ALL
@pytest.mark.parametrize("places", ["001122", "012"])
def test_messages_over_more_hosts(four_hosts: list[Host], places: str, what: Any) -> None:
    run_ranks(len(places), what, four_hosts, 30001 + len(places), places)


def _unlike(world: World, hosts: list[Host], port: int, what: str, who: int, unit: int) -> Caught:
    """One rank's call does not fit the others'; no tensor of any rank is touched."""
    join_hosts(world, hosts, port, "0011")
    rank, size = world.rank, world.size
    odd = rank == who
    if what == "reduce":
        mine = torch.full((unit + odd,), 7.0)
        caught = catch(dist.reduce, mine, 3)
    elif what == "root":
        mine = torch.full((unit,), 7.0)
        caught = catch(dist.reduce, mine, 1 if odd else 3)
    elif what == "gather":
        mine = torch.full((unit + odd,), 7.0)
        got = [torch.full((unit,), 7.0) for _ in range(size if rank == 3 else 0)]
        caught = catch(dist.gather, mine, got or None, 3)
        mine = torch.cat([mine, *got])
    elif what == "all_gather":
        counts = [unit, 2 * unit + odd, unit, unit]
        mine = torch.full((4 * size * unit,), 7.0)
        got = [torch.full((count,), 7.0) for count in counts]
        caught = catch(dist.all_gather, got, mine[: counts[rank]])
        mine = torch.cat([mine, *got])
    else:  # a message to one rank of the other host is longer than that expects
        counts = [unit] * size
        counts[(who + 2) % size] += odd
        mine = torch.full((size * unit,), 7.0)
        caught = catch(dist.all_to_all_single, mine, torch.zeros(sum(counts)), [unit] * size,
                       counts)  # fmt: skip
    assert mine.unique().tolist() == [7.0]
    return caught


def _different(world: World, hosts: list[Host], port: int, calls: list[str]) -> Caught:
    """Ranks issue different operations: each of them in its way through the hosts."""
    join_hosts(world, hosts, port, "0011")
    one, four = torch.full((3,), 7.0), [torch.zeros(3) for _ in range(4)]
    call = calls[world.rank]
    if call == "all_reduce":
        return catch(dist.all_reduce, one)
    if call == "barrier":
        return catch(dist.barrier)
    if call == "gather":
        return catch(dist.gather, one, four if world.rank == 0 else None, 0)
    if call == "all_gather":
        return catch(dist.all_gather, four, one)
    if call == "all_to_all":
        return catch(dist.all_to_all, four, [one] * 4)
    if call == "fused":
        return catch(fastcomm.fused_all_reduce_, [one])
    return catch(dist.reduce, one, int(call))


DIFFERENT = [
    *([each, other, each, each] for each in ("gather", "all_gather", "all_to_all", "fused")
      for other in ("all_reduce", "barrier", "0")),
    *([each, other, each, each] for other in ("gather", "all_gather", "all_to_all", "fused")
      for each in ("all_reduce", "barrier", "0")),
    ["0", "0", "3", "3"],
    ["1", "1", "all_reduce", "all_reduce"],
    ["3", "3", "barrier", "barrier"],
    ["2", "2", "gather", "gather"],
]  # fmt: skip


@pytest.mark.parametrize("calls", DIFFERENT, ids="-".join)
def test_calls_of_different_operations(hosts: list[Host], calls: list[str]) -> None:
    told = run_ranks(4, _different, hosts, 30008, calls)
    for caught in told:
        assert caught.kind == "CollectiveMismatchError", told
        assert caught.seconds < SOON, told


@pytest.mark.parametrize("unit", [5, 60_000])
@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("what", ["reduce", "root", "gather", "all_gather", "all_to_all"])
def test_calls_that_do_not_fit(hosts: list[Host], what: str, who: int, unit: int) -> None:
    told = run_ranks(4, _unlike, hosts, 30009, what, who, unit)
    for caught in told:
        assert caught.kind == "CollectiveMismatchError", told
        assert caught.seconds < SOON, told

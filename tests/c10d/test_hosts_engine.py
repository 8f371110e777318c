"""Operations over several hosts, composed of what each host does: bits, order and failures."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.futures import futures_are_complete_with_their_works
from support.namespaces import Host
from support.ranks import World, run_ranks
from support.reductions import COMPLEX, DTYPES, OPS, exists, inputs, op_of, reduced, same
from support.stores import join_hosts

import fastcomm

pytestmark = pytest.mark.serial  # network namespaces

SHORT_BYTES = 64 * 1024  # kShortBytes of csrc/coll/host_thresholds.h
CHUNK_BYTES = 1 << 20  # kLeastChunkBytes, there
ENCLOSED_BYTES = 2048  # HostExchange::kEnclosedBytes


def _counts(dtype: torch.dtype) -> list[int]:
    """Return numbers of elements around the limits of the ways that a sum goes."""
    partial = max(dtype.itemsize, 4 if dtype.is_floating_point else 1)
    short, chunk = SHORT_BYTES // partial, CHUNK_BYTES // partial
    enclosed = ENCLOSED_BYTES // partial
    return [0, 1, 2, enclosed, enclosed + 1, short, short + 1, short + 3, chunk + 1]


def _sums(world: World, hosts: list[Host], port: int, places: str) -> None:
    join_hosts(world, hosts, port, places)
    for dtype in DTYPES:
        for count in (67, SHORT_BYTES // dtype.itemsize + 101):
            terms = [inputs(dtype, count, rank) for rank in range(world.size)]
            for op in OPS:
                if not exists(op, dtype):
                    continue
                assert fastcomm.explain("all_reduce", terms[0], op=op).algorithm == "composed"
                mine = terms[world.rank].clone()
                work = dist.all_reduce(mine, op=op_of(op), async_op=op == "max")
                if work is not None:
                    work.wait()
                assert same(mine, reduced(terms, op), op), (dtype, count, op)


@pytest.mark.parametrize("places", ["0011", "00001111", "0101", "000111", "01101001"])
def test_bits_are_those_of_one_host(hosts: list[Host], places: str) -> None:
    run_ranks(len(places), _sums, hosts, 29900 + len(places), places)


@pytest.mark.parametrize("places", ["00112233", "001122", "012", "012012", "000111222"])
def test_bits_over_more_hosts(four_hosts: list[Host], places: str) -> None:
    run_ranks(len(places), _sums, four_hosts, 29910 + len(places), places)


def _of_all_sizes(world: World, hosts: list[Host], port: int, places: str) -> None:
    join_hosts(world, hosts, port, places)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for count in _counts(dtype):
            terms = [inputs(dtype, count, rank) for rank in range(world.size)]
            mine = terms[world.rank].clone()
            dist.all_reduce(mine, op=dist.ReduceOp.AVG)
            assert same(mine, reduced(terms, "avg"), "avg"), (dtype, count)
    terms = [torch.arange(4_000_001.0) * (rank + 1) for rank in range(world.size)]  # many chunks
    total = terms[world.rank].clone()
    dist.all_reduce(total)
    assert same(total, reduced(terms, "sum"), "sum")


def _random(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * count + rank)
    return torch.randint(0, 2, (count * dtype.itemsize,), generator=generator).byte().view(dtype)


def _moves(world: World, hosts: list[Host], port: int, places: str) -> None:
    """Compare the other composed operations with what torch makes of all ranks' tensors."""
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        short = SHORT_BYTES // dtype.itemsize
        enclosed = ENCLOSED_BYTES // dtype.itemsize
        counts = [1, enclosed, enclosed + 1, short, short + 3]
        for count in [0, *counts, 2_500_001] if dtype == torch.float32 else counts:
            each = [_random(dtype, count, peer) for peer in range(size)]
            whole = torch.zeros(size * count, dtype=dtype)
            dist.all_gather_into_tensor(whole, each[rank])
            assert _same_bytes(whole, torch.cat(each)), (dtype, count)
            parts = [torch.zeros(count, dtype=dtype) for _ in range(size)]
            dist.all_gather(parts, each[rank])
            assert _same_bytes(torch.cat(parts), torch.cat(each)), (dtype, count)
            root = count % size
            got = each[rank].clone()
            dist.broadcast(got, root)
            assert _same_bytes(got, each[root]), (dtype, count)
            dist.barrier()


def _parts_of_sums(world: World, hosts: list[Host], port: int, places: str) -> None:
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in (1, ENCLOSED_BYTES // 4, ENCLOSED_BYTES // 4 + 1, 2_400_001 // size):
            terms = [inputs(dtype, count * size, peer) for peer in range(size)]
            own = slice(rank * count, (rank + 1) * count)
            for op in ("sum", "avg", "max"):
                part = torch.zeros(count, dtype=dtype)
                dist.reduce_scatter_tensor(part, terms[rank], op=op_of(op))
                assert same(part, reduced([term[own] for term in terms], op), op), (dtype, count)
            listed = list(terms[rank].clone().chunk(size))
            dist.reduce_scatter(part, listed)
            assert same(part, reduced([term[own] for term in terms], "sum"), "sum"), (dtype, count)


def _same_bytes(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


MOVES = pytest.mark.parametrize("what", [_moves, _parts_of_sums])


@MOVES
@pytest.mark.parametrize("places", ["0011", "00001111", "010101"])
def test_moves(hosts: list[Host], places: str, what: Any) -> None:
    run_ranks(len(places), what, hosts, 29950 + len(places), places)


@MOVES
def test_moves_over_more_hosts(four_hosts: list[Host], what: Any) -> None:
    run_ranks(6, what, four_hosts, 29960, "001122")


def _lists(world: World, hosts: list[Host], port: int, counts: list[int]) -> None:
    join_hosts(world, hosts, port, "0011")
    rank, size = world.rank, world.size
    summed = [torch.full((count,), float(rank)) for count in counts]
    dist.all_reduce_coalesced(summed)
    assert all(each.unique().tolist() == [6.0] for each in summed)
    with dist._coalescing_manager():
        gathered = [torch.zeros(size, count) for count in counts]
        for each in gathered:
            dist.all_gather_into_tensor(each, torch.full_like(each[:1], float(rank)))
    assert all(each[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0] for each in gathered)
    with dist._coalescing_manager():
        scattered = [torch.zeros(count) for count in counts]
        for each in scattered:
            dist.reduce_scatter_tensor(each, torch.ones(size * len(each)))
    assert all(each.unique().tolist() == [4.0] for each in scattered)


@pytest.mark.parametrize("counts", [[3, 50_000], [300_000, 300_000, 700_001]], ids=str)
def test_lists(hosts: list[Host], counts: list[int]) -> None:
    """Short ones are one message, long ones a call each."""
    run_ranks(4, _lists, hosts, 29961, counts)


@pytest.mark.parametrize("places", ["0011", "001011"])
def test_every_size(hosts: list[Host], places: str) -> None:
    run_ranks(len(places), _of_all_sizes, hosts, 29915 + len(places), places)


def test_every_size_over_more_hosts(four_hosts: list[Host]) -> None:
    run_ranks(8, _of_all_sizes, four_hosts, 29921, "00112233")


def _tensors_of_all_kinds(world: World, hosts: list[Host], port: int) -> None:
    join_hosts(world, hosts, port, "0011")
    for dtype in COMPLEX:
        terms = [torch.view_as_complex(torch.randn(99, 2).to(torch.zeros((), dtype=dtype).real))
                 for _ in range(world.size)]  # fmt: skip
        dist.broadcast(stacked := torch.view_as_real(torch.stack(terms)), 0)
        terms = list(torch.view_as_complex(stacked))
        mine = terms[world.rank].clone()
        dist.all_reduce(mine)
        assert same(mine, reduced(terms, "sum"), "sum")
    strided = torch.full((6, 40_000), float(world.rank))[:, ::2]
    dist.all_reduce(strided)
    assert strided.unique().tolist() == [6.0]
    whole = fastcomm.empty(100_000)
    whole.fill_(world.rank)
    dist.all_reduce(whole)
    assert whole.unique().tolist() == [6.0]
    expanded = torch.zeros(1).expand(5)
    assert catch(dist.all_reduce, expanded).kind == "CollectiveArgumentError"
    several = [torch.full((count,), float(world.rank)) for count in (3, 40_000, 0)]
    dist.all_reduce_coalesced(several)
    assert [each.unique().tolist() for each in several] == [[6.0], [6.0], []]


def test_tensors_of_all_kinds(hosts: list[Host]) -> None:
    run_ranks(4, _tensors_of_all_kinds, hosts, 29922)


def _in_one_order(world: World, hosts: list[Host], port: int) -> None:
    """Composed calls, and those of Gloo as a whole, asynchronous and waited for in any order."""
    join_hosts(world, hosts, port, "0011")
    rank, size = world.rank, world.size
    for _ in range(5):
        sums = [torch.full((count,), float(rank)) for count in (1, 700_000, 20, 2_000_000, 5)]
        parts = torch.empty(size, 1000)
        works = []
        for index, each in enumerate(sums):
            works.append(dist.all_reduce(each, async_op=True))
            if index == 2:
                own = torch.full((1, 1000), float(rank))
                works.append(dist.all_gather_into_tensor(parts, own, async_op=True))
        for work in reversed(works):
            work.wait()
        assert all(each.unique().tolist() == [6.0] for each in sums)
        assert parts[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    _wait_by_a_barrier(world)
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    (summed,) = future.then(lambda done: [done.value()[0] * 2]).wait()
    assert summed.tolist() == [8.0] * 3
    # Those that a continuation issues have an order of their own: they do not count among the
    # others, before which they come on some ranks and not on others.
    for turn in range(5):
        again = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        nested = again.then(lambda done: dist.all_reduce(done.value()[0], async_op=True).wait())
        if rank % 2 == turn % 2:
            time.sleep(0.02)
        dist.all_reduce(torch.ones(3))
        nested.wait()
    futures_are_complete_with_their_works(world)


def _wait_by_a_barrier(world: World) -> None:
    """As users of Gloo do: a barrier comes after all that was issued before."""
    for _ in range(5):
        summed = torch.ones(1_000_000)
        parts = [torch.empty(300_000) for _ in range(world.size)] if world.rank == 0 else None
        dist.all_reduce(summed, async_op=True)
        dist.gather(torch.full((300_000,), float(world.rank)), parts, async_op=True)
        dist.barrier()
        assert summed.unique().tolist() == [4.0]
        if parts is not None:
            assert [part.unique().tolist() for part in parts] == [[0.0], [1.0], [2.0], [3.0]]


def test_calls_keep_their_order(hosts: list[Host]) -> None:
    run_ranks(4, _in_one_order, hosts, 29923)


def _why_not(world: World, hosts: list[Host], port: int, places: str) -> tuple[str, str]:
    join_hosts(world, hosts, port, places)
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [world.size] * 3
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return backend.why_not_composed, fastcomm.explain("all_reduce", total).algorithm


PLACES = {
    "01": "of two ranks, Gloo's sums have the same bits",
    "001": "differ in their numbers of ranks",
}


@pytest.mark.parametrize("places", PLACES)
def test_other_placements_run_on_gloo_as_a_whole(hosts: list[Host], places: str) -> None:
    for why, algorithm in run_ranks(len(places), _why_not, hosts, 29930 + len(places), places):
        assert PLACES[places] in why
        assert algorithm == "gloo"


def _one_asks(world: World, hosts: list[Host], port: int, places: str) -> tuple[str, str]:
    if world.rank == 1:
        os.environ["FASTCOMM_ROUTE"] = "fastest"  # nothing native is loaded yet
    return _why_not(world, hosts, port, places)


@pytest.mark.parametrize("places", ["012", "0101"])
def test_placements_that_cost_more_may_prefer_gloo(four_hosts: list[Host], places: str) -> None:
    """One rank asks for it, and all agree."""
    told = run_ranks(len(places), _one_asks, four_hosts, 29935, places)
    assert told == [("rank 1: FASTCOMM_ROUTE=fastest", "gloo")] * len(places)


def _explained(world: World, hosts: list[Host], port: int) -> str:
    join_hosts(world, hosts, port, "0101")
    return fastcomm.explain("all_reduce", torch.ones(9)).reason


def test_a_placement_says_what_it_costs(hosts: list[Host]) -> None:
    for reason in run_ranks(4, _explained, hosts, 29936):
        assert "a sum sends 2 partials from this host" in reason


def _parts(world: World, hosts: list[Host], port: int) -> list[str]:
    join_hosts(world, hosts, port, "0011")
    found = []
    for ranks in ([0, 1], [0, 2], [3, 2, 1, 0], [0, 1, 3]):
        group: Any = dist.new_group(ranks)
        if world.rank in ranks:
            total = torch.full((5,), float(world.rank))
            dist.all_reduce(total, group=group)
            assert total.tolist() == [float(sum(ranks))] * 5
            found.append(fastcomm.explain("all_reduce", total, group=group).algorithm)
    return found


def test_parts_of_a_group(hosts: list[Host]) -> None:
    first, second, third, fourth = run_ranks(4, _parts, hosts, 29934)
    assert first == ["one-shot", "gloo", "composed", "gloo"]
    assert second == ["one-shot", "composed", "gloo"]
    assert third == ["gloo", "composed"]
    assert fourth == ["composed", "gloo"]

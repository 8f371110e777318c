"""Lists of gradients reduced over several hosts, and shards gathered: bits, norms, residuals."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from support.caught import Caught, catch
from support.namespaces import Host
from support.ranks import World, run_ranks
from support.stores import join_hosts

import fastcomm
from fastcomm._gradients.fused import FusedResult, fused_reduce_add_coalesced
from fastcomm._gradients.shards import fused_reduce_scatter_, gather_shards_, row_offsets

pytestmark = pytest.mark.serial  # network namespaces

# Shapes and types of a model's gradients: several chunks of fp32, and all that a list may hold.
SHAPES: list[tuple[tuple[int, ...], torch.dtype]] = [
    ((3,), torch.float32),
    ((1100, 1000), torch.float32),
    ((0,), torch.float32),
    ((257,), torch.bfloat16),
    ((1100, 1200), torch.float32),
    ((40, 50), torch.float64),
    ((300, 301), torch.float16),
    ((), torch.float32),
    ((17, 5), torch.complex64),
    ((90_001,), torch.bfloat16),
]


def _gradients(rank: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    made = []
    for shape, dtype in SHAPES:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        made.append((torch.randn(shape, dtype=wide, generator=generator) * scale).to(dtype))
    made[1] = made[1].t()  # memory in another order
    return made


def _same(found: FusedResult, grads: list[torch.Tensor], oracle: FusedResult,
          wanted: tuple[torch.Tensor, ...]) -> None:  # fmt: skip
    for index, (got, want) in enumerate(zip(grads, wanted, strict=True)):
        assert torch.equal(got, want), index
    if oracle.norm_type is not None:
        assert torch.equal(found.total_norm, oracle.total_norm)
        assert torch.equal(found.partial_norms, oracle.partial_norms)
    assert torch.equal(found.found_inf, oracle.found_inf)


def _bits(world: World, hosts: list[Host], port: int, places: str) -> None:
    """A list has the bits that one process makes of all ranks' lists."""
    join_hosts(world, hosts, port, places)
    lists = [_gradients(rank) for rank in range(world.size)]
    for average, scale, norm in ((True, 1.0, 2.0), (False, 0.37, math.inf), (True, 3.0, None)):
        if norm == math.inf:  # a complex one has none
            lists = [each[:8] + each[9:] for each in lists]
        wanted, oracle = fused_reduce_add_coalesced(
            lists, average=average, scale=scale, norm_type=norm
        )
        mine = [each.clone() for each in lists[world.rank]]
        done = fastcomm.fused_all_reduce_(
            mine, average=average, scale=scale, norm_type=norm, async_op=norm is None
        )
        assert (done.work is not None) == (norm is None)
        done.wait()
        _same(done, mine, oracle, wanted)
    lists = [each[:3] for each in lists]
    lists[-1][0][1] = math.inf
    wanted, oracle = fused_reduce_add_coalesced(lists, average=True)
    mine = [each.clone() for each in lists[world.rank]]
    _same(fastcomm.fused_all_reduce_(mine), mine, oracle, wanted)
    assert oracle.found_inf.item() == 1
    assert fastcomm.fused_all_reduce_([]).total_norm.item() == 0
    assert fastcomm.fused_all_reduce_([torch.zeros(0)]).found_inf.item() == 0


def _tree(terms: list[torch.Tensor]) -> torch.Tensor:
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]


def _narrow(world: World, hosts: list[Host], port: int, places: str) -> None:
    """16 bits on the wire: the mean of each subtree on a host is rounded, and then their sum."""
    join_hosts(world, hosts, port, places)
    size = world.size
    each = 1 if places == "0101" else places.count("0")  # ranks of a subtree that lies on one host
    for wire in (torch.bfloat16, torch.float16):
        residuals = [torch.zeros(1_300_003) for _ in range(size)]
        for turn in range(2):
            lists = [
                torch.randn(1_300_003, generator=torch.Generator().manual_seed(10 * turn + rank))
                for rank in range(size)
            ]
            rounded = []
            for term, left in zip(lists, residuals, strict=True):
                rounded.append((term + left).to(wire).float())
                left.copy_(term + left - rounded[-1])
            partials = [
                (_tree(rounded[first : first + each]) / size * 0.5).to(wire).float()
                for first in range(0, size, each)
            ]
            total = _tree(partials).to(wire).float()
            mine = lists[world.rank].clone()
            if turn == 0:
                own = torch.zeros(1_300_003)
            fastcomm.fused_all_reduce_([mine], scale=0.5, comm_dtype=wire, residuals=[own])
            assert torch.equal(mine, total), wire
            assert torch.equal(own, residuals[world.rank]), wire


def _shards(world: World, hosts: list[Host], port: int, places: str) -> None:
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    lists = [[each for each in _gradients(peer) if not each.is_complex()] for peer in range(size)]
    for each in lists:
        each[1] = each[1].contiguous()
    offsets = [row_offsets(each, size) for each in lists[0]]
    wanted, oracle = fused_reduce_add_coalesced(lists, average=True)
    mine = [each.clone() for each in lists[rank]]
    done = fused_reduce_scatter_(mine, offsets)
    assert torch.equal(done.total_norm, oracle.total_norm)
    for got, want, own in zip(mine, wanted, offsets, strict=True):
        part = slice(own[rank], own[rank + 1]) if own else slice(None)
        assert torch.equal(got.reshape(-1)[part], want.reshape(-1)[part])
        if own:  # forget what others own
            got.reshape(-1)[: own[rank]] = 7
            got.reshape(-1)[own[rank + 1] :] = 7
    gather_shards_(mine, offsets)
    assert all(map(torch.equal, mine, wanted))


ALL = pytest.mark.parametrize("what", [_bits, _narrow, _shards])


@ALL
@pytest.mark.parametrize("places", ["0011", "00001111", "0101"])
def test_lists(hosts: list[Host], places: str, what: Any) -> None:
    run_ranks(len(places), what, hosts, 30010, places)


MORE = [(_bits, "001122"), (_bits, "012"), (_narrow, "00112233"), (_shards, "001122")]


@pytest.mark.parametrize(("what", "places"), MORE)
def test_lists_over_more_hosts(four_hosts: list[Host], what: Any, places: str) -> None:
    run_ranks(len(places), what, four_hosts, 30011, places)


def _trained(world: World, hosts: list[Host], port: int, places: str) -> list[torch.Tensor]:
    """Train by the wrapper, clipped; then by ShardedOptimizer."""
    join_hosts(world, hosts, port, places)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 7))
    wrapped = fastcomm.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(world.size * 4, 300)[world.rank :: world.size]
    for _ in range(3):
        plain.zero_grad()
        wrapped(inputs).square().mean().backward()
        fastcomm.clip_grad_norm_(model.parameters(), 0.5)
        plain.step()
    bare = copy.deepcopy(model)
    sharded = fastcomm.optim.ShardedOptimizer(bare.parameters(), torch.optim.AdamW, max_norm=0.5)
    for _ in range(2):
        sharded.zero_grad()
        bare(inputs).square().mean().backward()
        sharded.step()
    return [parameter.detach().clone() for parameter in bare.parameters()]


def test_trainings_have_the_weights_of_one_host(hosts: list[Host]) -> None:
    over_hosts = run_ranks(4, _trained, hosts, 30013, "0011")
    wanted, *_ = run_ranks(4, _trained, hosts, 30014, "0000")
    for weights in over_hosts:
        assert all(map(torch.equal, weights, wanted))


def _unlike(world: World, hosts: list[Host], port: int, who: int, feeds_back: bool) -> Caught:
    join_hosts(world, hosts, port, "0011")
    count = 100_000 + (world.rank == who)
    mine, left = torch.full((count,), 7.1), torch.full((count,), 7.1)
    more: dict[str, Any] = {"comm_dtype": torch.bfloat16, "residuals": [left]} if feeds_back else {}
    caught = catch(fastcomm.fused_all_reduce_, [mine], **more)
    assert len({*mine.tolist(), *left.tolist()}) == 1  # nothing was touched
    return caught


@pytest.mark.parametrize("feeds_back", [False, True])
@pytest.mark.parametrize("who", [0, 1, 3])
def test_lists_that_differ(hosts: list[Host], who: int, feeds_back: bool) -> None:
    told = run_ranks(4, _unlike, hosts, 30012, who, feeds_back)
    assert [caught.kind for caught in told] == ["CollectiveMismatchError"] * 4, told

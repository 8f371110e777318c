"""Unusual limits of messages between hosts: the same bits, and rank 0's limits on all ranks."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.namespaces import Host
from support.ranks import World, run_ranks
from support.reductions import inputs, op_of, reduced, same
from support.stores import join_hosts

import fastcomm
from fastcomm import _native
from fastcomm._distributed.backend import backend_of

pytestmark = pytest.mark.serial  # network namespaces

KIB = 1 << 10
SHORT, CHUNK = "FASTCOMM_HOSTS_SHORT_BYTES", "FASTCOMM_HOSTS_CHUNK_BYTES"
SMALL = {SHORT: str(4 * KIB), CHUNK: str(64 * KIB)}
LARGE = {SHORT: str(1 << 20), CHUNK: str(64 << 20)}
LEAST = {SHORT: str(2 * KIB), CHUNK: str(4 * KIB)}


def _sizes(limits: dict[str, str]) -> list[int]:
    """Return sizes around the limits, in bytes of partials."""
    short, chunk = int(limits[SHORT]), int(limits[CHUNK])
    longer = [chunk, chunk + 4, 5 * chunk + 12] if chunk < 1 << 20 else [2 * short + 12]
    return [4, 2048, 2052, short, short + 4, *longer]


def _same_bits(
    world: World, hosts: list[Host], port: int, places: str, of_rank: list[dict[str, str]]
) -> str:
    """Run all kinds of composed operations, with settings that are this rank's."""
    os.environ.update(of_rank[world.rank])  # nothing native is loaded yet
    join_hosts(world, hosts, port, places)
    rank, size = world.rank, world.size
    for nbytes in _sizes(of_rank[0]):
        for dtype in (torch.float32, torch.bfloat16):
            count = nbytes // 4  # a partial is fp32
            terms = [inputs(dtype, count, peer) for peer in range(size)]
            mine = terms[rank].clone()
            dist.all_reduce(mine, op=op_of("avg"))
            assert same(mine, reduced(terms, "avg"), "avg"), (dtype, nbytes)
            to_root = terms[rank].clone()
            dist.reduce(to_root, count % size)
            if rank == count % size:
                assert same(to_root, reduced(terms, "sum"), "sum"), (dtype, nbytes)
            parts = [torch.empty_like(term) for term in terms]
            dist.all_gather(parts, terms[rank])
            assert all(map(_same_bytes, parts, terms)), (dtype, nbytes)
            got = terms[rank].clone()
            dist.broadcast(got, count % size)
            assert _same_bytes(got, terms[count % size]), (dtype, nbytes)
        _of_lists(rank, size, count)
    return fastcomm.explain("all_reduce", torch.ones(9)).reason


def _of_lists(rank: int, size: int, count: int) -> None:
    """Sum parts of a tensor, and gradients, which are packed, also as 16 bits."""
    terms = [inputs(torch.float32, count * size, peer) for peer in range(size)]
    part = torch.empty(count)
    dist.reduce_scatter_tensor(part, terms[rank])
    own = slice(rank * count, (rank + 1) * count)
    assert same(part, reduced([term[own] for term in terms], "sum"), "sum"), count
    for wire in (None, torch.bfloat16):
        gradients = [torch.full((length,), rank + 1.0) for length in (3, count, 0, 1000)]
        fastcomm.fused_all_reduce_(gradients, average=False, comm_dtype=wire)
        total = size * (size + 1) / 2
        assert all((each == total).all() for each in gradients), (wire, count)


def _same_bytes(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("places", ["0011", "0101", "001011"])
@pytest.mark.parametrize("limits", [SMALL, LARGE, LEAST], ids=["small", "large", "least"])
def test_bits_are_the_same(hosts: list[Host], places: str, limits: dict[str, str]) -> None:
    of_rank = [limits] * len(places)
    for reason in run_ranks(len(places), _same_bits, hosts, 29970, places, of_rank):
        assert f"short up to {limits[SHORT]} bytes ({SHORT} of rank 0)" in reason
        assert f"longer in chunks of {limits[CHUNK]} bytes ({CHUNK} of rank 0)" in reason


def test_bits_are_the_same_over_more_hosts(four_hosts: list[Host]) -> None:
    run_ranks(8, _same_bits, four_hosts, 29971, "00112233", [SMALL] * 8)


def test_ranks_that_differ_take_those_of_rank_0(hosts: list[Host]) -> None:
    of_rank: list[Any] = [SMALL, LARGE, {}, LEAST]
    told = run_ranks(4, _same_bits, hosts, 29972, "0011", of_rank)
    assert len(set(told)) == 1
    assert "short up to 4096 bytes" in told[0] and "chunks of 65536 bytes" in told[0]


def _tuned(world: World, hosts: list[Host], port: int) -> list[str]:
    """Tell the library of values as a record of tuning does, and explain groups."""
    if world.rank == 0:
        _native.load().set_host_tuning(2, 2, chunk_bytes=128 * KIB)
        _native.load().set_host_tuning(2, 1, short_bytes=8 * KIB)
    elif world.rank == 1:
        _native.load().set_host_tuning(2, 2, short_bytes=8 * KIB)
    join_hosts(world, hosts, port, "0011")
    backend = backend_of(dist.group.WORLD, behind_checks=True)
    assert backend is not None and backend.hosts == [[0, 1], [2, 3]]
    assert backend.host_thresholds == (64 * KIB, 128 * KIB)
    return [fastcomm.explain("all_reduce", torch.ones(9)).reason]


def test_values_of_tuning_are_those_of_rank_0(hosts: list[Host]) -> None:
    for (reason,) in run_ranks(4, _tuned, hosts, 29973):
        assert "short up to 65536 bytes (by default)" in reason
        by = "tuned for this number of hosts and ranks"
        assert f"chunks of 131072 bytes ({by})" in reason

"""Lists with owners: offsets, reduce-scatter, gathering, native and over Gloo; what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World

import fastcomm
from fastcomm._gradients.shards import row_offsets


@given(rows=st.integers(0, 20), columns=st.integers(1, 5), size=st.integers(1, 9))
def test_rows_are_cut_as_chunk_cuts_them(rows: int, columns: int, size: int) -> None:
    tensor = torch.arange(rows * columns).view(rows, columns)
    offsets = row_offsets(tensor, size)
    found = [tensor.view(-1)[a:b] for a, b in pairwise(offsets)]
    wanted = [chunk.reshape(-1) for chunk in tensor.chunk(size)] if rows else []
    wanted += [torch.empty(0, dtype=torch.int64)] * (size - len(wanted))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_what_cannot_be_cut_by_rows() -> None:
    assert row_offsets(torch.zeros(()), 3) == []
    channels_last = torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last)
    assert row_offsets(channels_last, 2) == [0, 150, 300]
    for tensor in (torch.zeros(4, 6).t(), torch.zeros(4, 6)[:, ::2], torch.zeros(3).expand(4, 3)):
        with pytest.raises(ValueError, match="cannot be divided by rows"):
            row_offsets(tensor, 2)


def _tensors(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(n, generator=generator) for n in (9000, 5, 0, 4097, 1)]


@on_ranks(2, 3, 4, environments=TRANSPORTS)
def test_parts_are_those_of_the_whole(world: World) -> None:
    world.init()
    size, rank = world.size, world.rank
    whole, parts = _tensors(rank), _tensors(rank)
    wanted = fastcomm.fused_all_reduce_(whole, scale=0.5)
    offsets: list[list[int]] = [
        [0, *(4090 + i for i in range(size - 1)), 9000],  # within one unit
        [0, *[5] * size],  # all of it belongs to the first rank
        [0] * (size + 1),
        [*[0] * size, 4097],
        [],  # everybody's
    ]
    result = fastcomm.fused_reduce_scatter_(parts, offsets, scale=0.5)
    assert result.total_norm == wanted.total_norm and torch.equal(
        result.partial_norms, wanted.partial_norms
    )
    for part, all_of_it, own_offsets in zip(parts, whole, offsets, strict=True):
        own = slice(own_offsets[rank], own_offsets[rank + 1]) if own_offsets else slice(None)
        assert torch.equal(part[own], all_of_it[own])
    fastcomm.gather_shards_(parts, offsets)
    assert all(torch.equal(a, b) for a, b in zip(parts, whole, strict=True))
    base = torch.zeros(9, 2)
    for tensor, words in ((base[:, 0], "gaps"), (torch.zeros(9, dtype=torch.complex64), "complex")):
        for call in (fastcomm.fused_reduce_scatter_, fastcomm.gather_shards_):
            with pytest.raises(ValueError, match=words):
                call([tensor], [[0, *[9] * size]])
    bad: list[Any] = [[[0, 9]], [[1, *[9] * size]], [[0, 7, 3, *[9] * (size - 2)]], []]
    for case in bad:
        for call in (fastcomm.fused_reduce_scatter_, fastcomm.gather_shards_):
            with pytest.raises(ValueError, match="offsets"):
                call([torch.zeros(9)], case)

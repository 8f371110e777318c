"""Bits of the native operations, through torch.distributed, over several processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from support.reductions import DTYPES
from support.tree import same_bits, tree_sum
from support.values import FLOATS, INTEGERS, cancelling, special

# One-shot, its limit and beyond, pipelined with a whole and with a partial last block.
COUNTS = [0, 1, 3, 17, 1000, 4096, 4097, 16384, 70_001]
# Types that are moved and never reduced.
NARROW = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]
SMALL_BLOCKS = {"FASTCOMM_ONE_SHOT_BYTES": "1024", "FASTCOMM_BLOCK_BYTES": "4096"}


def _all_reduce_bits(world: World) -> None:
    world.init()
    for dtype in [*FLOATS, *INTEGERS, torch.bool]:
        for count in COUNTS:
            inputs = [cancelling(dtype, count, rank) for rank in range(world.size)]
            for op, average in ((dist.ReduceOp.SUM, False), (dist.ReduceOp.AVG, True)):
                if average and dtype == torch.bool:
                    continue
                mine = inputs[world.rank].clone()
                dist.all_reduce(mine, op=op)
                expected = tree_sum(inputs, average)
                assert same_bits(mine, expected), (dtype, count, op, mine, expected)
    for dtype in FLOATS:
        inputs = [special(dtype, rank) for rank in range(world.size)]
        mine = inputs[world.rank].clone()
        dist.all_reduce(mine)
        assert same_bits(mine, tree_sum(inputs)), (dtype, mine)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
def test_all_reduce_sums_in_the_order_of_the_tree(size: int) -> None:
    run_ranks(size, _all_reduce_bits, environment=SMALL_BLOCKS)


@pytest.mark.parametrize("isa", ["generic", "avx2"])
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    import fastcomm._native

    available = fastcomm._native.load().reduce_isa()
    if isa == "avx2" and available == "generic":
        pytest.skip("this processor or build has no AVX2")
    run_ranks(5, _all_reduce_bits, environment={**SMALL_BLOCKS, "FASTCOMM_ISA": isa})


@on_ranks(4, 5, 7)
def test_the_tree_is_not_a_left_fold(world: World) -> None:
    world.init()
    values = [1e8, 1.0, -1e8, 1.0, 0.5, -0.5, 3.0, 1e-8][: world.size]
    mine = torch.tensor([values[world.rank]])
    dist.all_reduce(mine)
    inputs = [torch.tensor([value]) for value in values]
    assert same_bits(mine, tree_sum(inputs))
    left_fold = inputs[0]
    for value in inputs[1:]:
        left_fold = left_fold + value
    assert not same_bits(mine, left_fold), "these values would not tell the orders apart"


def _same_bits_for_any_cut(world: World) -> list[bytes]:
    """Check that all sizes, alignments and algorithms of one message give the bits of the whole."""
    world.init()
    whole = cancelling(torch.float32, 50_000, world.rank)
    reference = whole.clone()
    dist.all_reduce(reference)
    for piece in (1000, 4097, 20_000):
        pieces = whole.clone()
        for start in range(0, len(whole), piece):
            dist.all_reduce(pieces[start : start + piece])
        assert same_bits(pieces, reference), piece
    for shift in (1, 2, 3, 5):
        shifted = torch.empty(len(whole) + shift)[shift:]
        shifted.copy_(whole)
        dist.all_reduce(shifted)
        assert same_bits(shifted, reference), shift
    return [reference.numpy().tobytes()]


def test_bits_depend_on_nothing_but_the_ranks() -> None:
    results = run_ranks(5, _same_bits_for_any_cut, environment=SMALL_BLOCKS)
    assert all(result == results[0] for result in results)
    # Other sizes of blocks and slots, another run.
    assert run_ranks(5, _same_bits_for_any_cut) == results


@on_ranks(2, 3, 6, environment=SMALL_BLOCKS)
def test_broadcast_and_all_gather_move_every_byte(world: World) -> None:
    world.init()
    for dtype in [*DTYPES, torch.complex64, *NARROW]:
        for count in COUNTS:
            base = torch.arange(count, dtype=torch.float32)
            messages = [(base % 13 + rank).to(dtype) for rank in range(world.size)]
            for root in (0, world.size - 1):
                data = messages[world.rank].clone()
                dist.broadcast(data, root)
                assert _same(data, messages[root]), (dtype, count, root)
            outputs = [torch.empty_like(messages[0]) for _ in range(world.size)]
            dist.all_gather(outputs, messages[world.rank])
            for rank in range(world.size):
                assert _same(outputs[rank], messages[rank]), (dtype, count, rank)
            outputs[world.rank] = messages[world.rank]  # in place
            dist.all_gather(outputs, messages[world.rank])
            assert all(_same(outputs[r], messages[r]) for r in range(world.size))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.numel() else True


def _barriers(world: World) -> list[tuple[float, float]]:
    import time

    world.init()
    dist.barrier()
    times = []
    for late in range(world.size):
        if late == world.rank:
            time.sleep(0.2)
        arrived = time.monotonic()
        dist.barrier()
        times.append((arrived, time.monotonic()))
    return times


def test_nobody_leaves_a_barrier_before_all_have_come() -> None:
    per_rank = run_ranks(4, _barriers)
    for round_times in zip(*per_rank, strict=True):
        last_arrival = max(arrived for arrived, _ in round_times)
        assert all(left >= last_arrival for _, left in round_times)


@on_ranks(4)
def test_groups_of_some_of_the_ranks(world: World) -> None:
    world.init()
    pairs = [[a, b] for a in range(world.size) for b in range(a + 1, world.size)]
    groups = [(pair, dist.new_group(pair)) for pair in pairs for _ in range(3)]
    for index, (pair, group) in enumerate(groups):
        if world.rank in pair:
            tensor = torch.full((100,), float(world.rank + index))
            dist.all_reduce(tensor, group=group)
            assert tensor[0].item() == sum(pair) + 2 * index
    for pair, group in groups:
        if world.rank in pair:
            dist.destroy_process_group(group)
    again = dist.new_group(list(range(world.size)))
    dist.all_reduce(tensor := torch.ones(3), group=again)
    assert tensor.tolist() == [world.size] * 3

"""all_gather_into_tensor, reduce_scatter and reduce_scatter_tensor, native; PREMUL_SUM; FSDP2."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from support.reductions import inputs, op_of, reduced, same
from support.small_models import blocks, loss_of
from support.tree import same_bits, tree_sum

COUNTS = [0, 1, 3, 1000, 4096, 70001]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool]
BLOCKS = {"default": {}, "small blocks": {"FASTCOMM_BLOCK_BYTES": "4096"}}


@on_ranks(1, 2, 3, 5, environments=BLOCKS)
def test_bits_are_those_of_the_tree(world: World) -> None:
    world.init()
    rank, size = world.rank, world.size
    for dtype, count in product(DTYPES, COUNTS):
        given = [inputs(dtype, size * count + 1, peer)[:-1] for peer in range(size)]
        parts = [whole.split(count) if count else [whole] * size for whole in given]
        for op in ("sum", "avg", "premul_sum") if dtype.is_floating_point else ("sum",):
            case = dtype, count, op
            wanted = reduced([of_peer[rank] for of_peer in parts], op)
            output, async_op = torch.empty(count, dtype=dtype), count % 2 == 1
            work = dist.reduce_scatter_tensor(output, given[rank], op_of(op), async_op=async_op)
            assert (work is not None) == async_op
            if work is not None:
                work.wait()
            assert same(output, wanted, op), case
            output.zero_()
            dist.reduce_scatter(output, list(parts[rank]), op_of(op))
            assert same(output, wanted, op), case
            # In place, where this rank's part is, and where another rank's is.
            for place in (rank, 0):
                whole = given[rank].clone()
                part = whole[place * count : (place + 1) * count]
                dist.reduce_scatter_tensor(part, whole, op_of(op))
                assert same(part, wanted, op), (case, place)
        wanted = torch.cat([of_peer[0] for of_peer in parts])
        gathered = torch.empty_like(given[rank])
        dist.all_gather_into_tensor(gathered, parts[rank][0])
        assert same_bits(gathered, wanted), (dtype, count)
        for place in (rank, 0):
            gathered.zero_()
            part = gathered[place * count : (place + 1) * count].copy_(parts[rank][0])
            dist.all_gather_into_tensor(gathered, part)
            assert same_bits(gathered, wanted), (dtype, count, place)


@on_ranks(2)
def test_layouts(world: World) -> None:
    """Use complex numbers, conjugated ones, matrices, and tensors with gaps."""
    world.init()
    rank, size = world.rank, world.size
    generator = torch.Generator().manual_seed(5)
    values = torch.randint(-9, 9, (size, size * 4, 6), generator=generator).float()
    mine = values[rank]
    output = torch.empty(4, 3)
    dist.reduce_scatter_tensor(output, mine[:, ::2])
    assert torch.equal(output, values.sum(0)[4 * rank : 4 * rank + 4, ::2])
    turned = torch.empty(6, 4).t()
    dist.reduce_scatter_tensor(turned, mine)
    assert torch.equal(turned, values.sum(0)[4 * rank : 4 * rank + 4])
    pairs = torch.view_as_complex(mine.reshape(-1, 2).contiguous()).conj()
    complex_output = torch.empty(len(pairs) // size, dtype=torch.complex64)
    dist.reduce_scatter_tensor(complex_output, pairs)
    all_pairs = torch.view_as_complex(values.reshape(size, -1, 2).contiguous()).conj()
    each = len(pairs) // size
    assert torch.equal(complex_output, all_pairs.sum(0)[each * rank : each * (rank + 1)])
    gathered = torch.empty(4 * size, 6)
    dist.all_gather_into_tensor(gathered, mine[:4])
    assert torch.equal(gathered, values[:, :4].reshape(-1, 6))


def _errors(world: World) -> list[str]:
    world.init()
    with pytest.raises(ValueError, match="6 elements, which are not 2 times the 2"):
        dist.reduce_scatter_tensor(torch.empty(2), torch.empty(6))
    with pytest.raises((ValueError, RuntimeError, TypeError), match="dtype"):
        dist.reduce_scatter_tensor(torch.empty(2), torch.empty(4, dtype=torch.float64))
    value = torch.full((3,), 5.0)
    made: Any = getattr(dist, "_make_nccl_premul_sum", None)  # torch before 2.13
    factor = 0.5 if world.rank == 0 else 0.25
    caught = catch(dist.all_reduce, value, op=(made or dist.ReduceOp.PREMUL_SUM)(factor))
    assert torch.equal(value, torch.full((3,), 5.0))
    assert caught.kind == "CollectiveMismatchError"
    return [caught.text]


def test_errors_name_what_differs() -> None:
    for texts in run_ranks(2, _errors):
        assert "factor 0.5" in texts[0] and "factor 0.25" in texts[0]


@pytest.mark.parametrize("factor", [None, 5.0])  # PREMUL_SUM with a factor that is not the size
@on_ranks(2, 3)
def test_fsdp2_reduces_with_the_bits_of_the_tree(world: World, factor: float | None) -> None:
    """Compare FSDP2 with a plain model whose gradients are reduced in the order of the tree."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import DTensor

    world.init()
    plain, sharded = blocks(), blocks()
    mesh = init_device_mesh("cpu", (world.size,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    if factor is not None:
        for module in sharded.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(factor)
    ours = torch.optim.SGD(sharded.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(3):
        ours.zero_grad()
        theirs.zero_grad()
        for model in (sharded, plain):
            loss_of(model, 10 * step + world.rank).backward()
        for parameter in plain.parameters():
            assert parameter.grad is not None
            terms = [torch.empty_like(parameter.grad) for _ in range(world.size)]
            dist.all_gather(terms, parameter.grad)
            if factor is None:
                total = tree_sum(terms) / world.size
            else:
                total = tree_sum([term * (1 / factor) for term in terms])
            parameter.grad.copy_(total)
        ours.step()
        theirs.step()
        for a, b in zip(sharded.parameters(), plain.parameters(), strict=True):
            assert isinstance(a, DTensor) and torch.equal(a.full_tensor(), b)

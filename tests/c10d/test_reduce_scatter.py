"""all_gather_into_tensor, reduce_scatter and reduce_scatter_tensor, native; PREMUL_SUM; FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import tree
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from torch import nn

import fastcomm

COUNTS = [0, 1, 3, 1000, 4096, 70001]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool]
FLOATS = DTYPES[:4]


def _parts(rank: int, size: int, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return what a rank gives to each rank; values that cancel."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    values = torch.randn(size, count, generator=generator) * 100
    scale = torch.randint(-6, 6, (size, count), generator=generator)
    values = (values * 2.0**scale).clamp(-6e4, 6e4)
    return list((values > 0 if dtype == torch.bool else values).to(dtype))


def _sum(terms: list[torch.Tensor], op: str) -> torch.Tensor:
    dtype = terms[0].dtype
    if not dtype.is_floating_point:
        total = terms[0].clone()
        for term in terms[1:]:
            total = total | term if dtype == torch.bool else total + term
        return total
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = [term.to(wide) for term in terms]
    if op == "premul":
        leaves = [leaf * torch.tensor(1 / 3, dtype=wide) for leaf in leaves]
    total = tree.tree_sum(leaves)
    if op == "avg":
        total = total / torch.tensor(len(terms), dtype=wide)
    return total.to(dtype)


def _op(op: str) -> Any:
    plain = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG}
    return plain[op] if op in plain else _premul_sum(1 / 3)


def _premul_sum(factor: float) -> Any:
    made: Any = getattr(dist, "_make_nccl_premul_sum", None)  # torch before 2.13
    return (made or dist.ReduceOp.PREMUL_SUM)(factor)


def _bits(world: World) -> None:
    world.init()
    rank, size = world.rank, world.size
    for dtype in DTYPES:
        for count in COUNTS:
            for op in ("sum", "avg", "premul") if dtype in FLOATS else ("sum",):
                given = [_parts(peer, size, count, dtype) for peer in range(size)]
                wanted = _sum([parts[rank] for parts in given], op)
                whole, output = torch.cat(given[rank]), torch.empty(count, dtype=dtype)
                async_op = count % 2 == 1
                work = dist.reduce_scatter_tensor(output, whole, op=_op(op), async_op=async_op)
                assert (work is not None) == async_op
                if work is not None:
                    work.wait()
                assert torch.equal(output, wanted), (dtype, count, op)
                output.zero_()
                dist.reduce_scatter(output, given[rank], op=_op(op))
                assert torch.equal(output, wanted), (dtype, count, op)
                # In place, where this rank's part is, and where another rank's is.
                for place in (rank, 0):
                    whole = torch.cat(given[rank])
                    part = whole[place * count : (place + 1) * count]
                    dist.reduce_scatter_tensor(part, whole, op=_op(op))
                    assert torch.equal(part, wanted), (dtype, count, op, place)
                gathered = torch.empty(size * count, dtype=dtype)
                dist.all_gather_into_tensor(gathered, given[rank][0], async_op=False)
                assert torch.equal(gathered, torch.cat([parts[0] for parts in given]))
                for place in (rank, 0):
                    gathered.zero_()
                    part = gathered[place * count : (place + 1) * count].copy_(given[rank][0])
                    dist.all_gather_into_tensor(gathered, part)
                    assert torch.equal(gathered, torch.cat([parts[0] for parts in given]))
            if dtype in FLOATS:
                value = given[rank][0].clone()
                dist.all_reduce(value, op=_op("premul"))
                assert torch.equal(value, _sum([parts[0] for parts in given], "premul"))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_bits_are_those_of_the_tree(size: int) -> None:
    run_ranks(size, _bits)


def test_bits_with_small_blocks() -> None:
    run_ranks(3, _bits, environment={"FASTCOMM_BLOCK_BYTES": "4096"})


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


@on_ranks(2)
def test_what_the_router_says_is_done(world: World) -> None:
    world.init()
    for name in ("reduce_scatter", "reduce_scatter_tensor", "all_gather_into_tensor"):
        assert fastcomm.explain(name, count=8).algorithm == "one-shot"
        assert fastcomm.explain(name, count=1 << 20).algorithm == "pipelined"
    assert fastcomm.explain("reduce_scatter", count=8, op="premul_sum").native
    assert fastcomm.explain("reduce_scatter", count=8, op="max").native
    assert not fastcomm.explain("reduce_scatter", count=8, op="bxor").native
    assert fastcomm.explain("gather", count=8).algorithm == "by table"


def _errors(world: World) -> list[str]:
    world.init()
    with pytest.raises(ValueError, match="6 elements, which are not 2 times the 2"):
        dist.reduce_scatter_tensor(torch.empty(2), torch.empty(6))
    with pytest.raises((ValueError, RuntimeError, TypeError), match="dtype"):
        dist.reduce_scatter_tensor(torch.empty(2), torch.empty(4, dtype=torch.float64))
    value = torch.full((3,), 5.0)
    factor = 0.5 if world.rank == 0 else 0.25
    caught = catch(dist.all_reduce, value, op=_premul_sum(factor))
    assert torch.equal(value, torch.full((3,), 5.0))
    assert caught.kind == "CollectiveMismatchError"
    return [caught.text]


def test_errors_name_what_differs() -> None:
    for texts in run_ranks(2, _errors):
        assert "factor 0.5" in texts[0] and "factor 0.25" in texts[0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 33), nn.Linear(33, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.up(x).tanh())
        return out


def _model() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(Block(), Block(), nn.Linear(16, 4))


def _batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + rank))


def _fsdp(world: World, factor: float | None) -> None:
    """Compare FSDP2 with a plain model whose gradients are reduced in the order of the tree."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import DTensor

    world.init()
    plain, sharded = _model(), _model()
    mesh = init_device_mesh("cpu", (world.size,))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
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
        sharded(_batch(world.rank, step)).square().mean().backward()
        plain(_batch(world.rank, step)).square().mean().backward()
        for parameter in plain.parameters():
            assert parameter.grad is not None
            terms = [torch.empty_like(parameter.grad) for _ in range(world.size)]
            dist.all_gather(terms, parameter.grad)
            if factor is None:
                total = tree.tree_sum(terms) / world.size
            else:
                total = tree.tree_sum([term * (1 / factor) for term in terms])
            parameter.grad.copy_(total)
        ours.step()
        theirs.step()
        for a, b in zip(sharded.parameters(), plain.parameters(), strict=True):
            assert isinstance(a, DTensor) and torch.equal(a.full_tensor(), b)


@pytest.mark.parametrize("factor", [None, 5.0])  # PREMUL_SUM with a factor that is not the size
def test_fsdp2_reduces_with_the_bits_of_the_tree(factor: float | None) -> None:
    run_ranks(2, _fsdp, factor)
    run_ranks(3, _fsdp, factor)

"""Collectives as operators: ``torch.ops.fastcomm``, eager, differentiated and compiled."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch, interrupted_in
from support.interrupts import interruptible
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World

import fastcomm.distributed as fd
from fastcomm import errors
from fastcomm._distributed.operators import OPERATORS

# Over shared memory, where ranks share none, and behind torch's checks.
WAYS = {**TRANSPORTS, "checked": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.uint8)

# Before, AOTInductor writes what an operator raised to standard error.
KEEPS_TEXT = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def _name(world: World) -> str:
    world.init()
    name: str = dist.group.WORLD.group_name
    return name


def _mine(world: World, dtype: torch.dtype, rows: int = 6) -> torch.Tensor:
    return (torch.arange(rows * 3).view(rows, 3) + world.rank).to(dtype)


@on_ranks(2, 3, environments=WAYS)
def test_operators_have_the_bits_of_c10d(world: World) -> None:
    name = _name(world)
    for dtype in DTYPES:
        for op, theirs in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX)):
            mine, expected = _mine(world, dtype), _mine(world, dtype)
            dist.all_reduce(expected, theirs)
            assert torch.equal(OPERATORS.all_reduce(mine, name, op), expected)
            assert torch.equal(mine, _mine(world, dtype))  # as it was
            OPERATORS.all_reduce_(mine, name, op)
            assert torch.equal(mine, expected)
        mine = _mine(world, dtype)
        parts = [torch.empty_like(mine) for _ in range(world.size)]
        dist.all_gather(parts, mine)
        assert torch.equal(OPERATORS.all_gather(mine, name), torch.cat(parts))
        whole = torch.empty(world.size * 6, 3, dtype=dtype)
        OPERATORS.all_gather_into(whole, mine, name)
        assert torch.equal(whole, torch.cat(parts))
        part = torch.empty(6 // world.size, 3, dtype=dtype)
        dist.reduce_scatter_tensor(part, mine)
        assert torch.equal(OPERATORS.reduce_scatter(mine, name), part)
        again = torch.empty_like(part)
        OPERATORS.reduce_scatter_into(again, mine, name)
        assert torch.equal(again, part)
        assert torch.equal(OPERATORS.broadcast(mine, 1, name), parts[1])
        root = mine.clone()
        OPERATORS.broadcast_(root, 1, name)
        assert torch.equal(root, parts[1])
        exchanged = torch.empty_like(mine)
        dist.all_to_all_single(exchanged, mine)
        assert torch.equal(OPERATORS.all_to_all(mine, None, None, name), exchanged)
    OPERATORS.barrier(name)


@on_ranks(2)
def test_messages_of_several_sizes(world: World) -> None:
    """Rank 0 gives 1 and 3 rows, rank 1 gives 2 and 4."""
    name = _name(world)
    inputs, outputs = ([1, 3], [1, 2]) if world.rank == 0 else ([2, 4], [3, 4])
    mine = torch.full((sum(inputs), 2), float(world.rank))
    found = OPERATORS.all_to_all(mine, outputs, inputs, name)
    assert found[:, 0].tolist() == [0.0] * outputs[0] + [1.0] * outputs[1]


@on_ranks(2)
def test_derivatives(world: World) -> None:
    """Of the sum of both ranks' losses, each a product with numbers of its own."""
    name = _name(world)
    weight = float(world.rank + 1)  # of this rank's loss

    def gradient(call: Any, rows: int = 4) -> list[float]:
        tensor = torch.ones(rows, requires_grad=True)
        (call(tensor) * weight).sum().backward()
        assert tensor.grad is not None
        found: list[float] = tensor.grad.tolist()
        return found

    both = 1.0 + 2.0
    assert gradient(lambda x: OPERATORS.all_reduce(x, name)) == [both] * 4
    assert gradient(lambda x: OPERATORS.all_reduce(x, name, "avg")) == [both / 2] * 4
    assert gradient(lambda x: OPERATORS.all_gather(x, name)) == [both] * 4
    assert gradient(lambda x: OPERATORS.reduce_scatter(x, name)) == [1.0, 1.0, 2.0, 2.0]
    assert gradient(lambda x: OPERATORS.reduce_scatter(x, name, "avg")) == [0.5, 0.5, 1.0, 1.0]
    expected = [both] * 4 if world.rank == 1 else [0.0] * 4
    assert gradient(lambda x: OPERATORS.broadcast(x, 1, name)) == expected
    assert gradient(lambda x: OPERATORS.all_to_all(x, None, None, name)) == [1.0, 1.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match="op='max' has no derivative"):
        gradient(lambda x: OPERATORS.all_reduce(x, name, "max"))


def _block(tensor: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    """A layer that is cut along its inner dimension, as tensor parallelism does."""
    partial = tensor @ weight
    OPERATORS.all_reduce_(partial, name)
    normed = torch.nn.functional.layer_norm(partial, partial.shape[-1:])
    return OPERATORS.all_gather(normed, name).relu() + OPERATORS.all_reduce(normed, name).sum()


@on_ranks(2)
def test_compiled_without_a_break(world: World) -> None:
    name = _name(world)
    torch.manual_seed(world.rank)
    tensor, weight = torch.randn(4, 8), torch.randn(8, 16)
    compiled = torch.compile(_block, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(tensor, weight, name), _block(tensor, weight, name))


class _RowParallel(torch.nn.Module):
    """A linear layer that is cut along its inner dimension; each operator sees what it gives."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        torch.manual_seed(world.rank)
        # Whole numbers have the same bits in any order.
        weight = torch.randint(-8, 8, (8, 16)).float()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.name = name

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        name, partial = self.name, x @ self.weight
        unread = partial + 1
        OPERATORS.all_reduce_(partial, name)
        OPERATORS.all_reduce_(unread, name, "max")
        OPERATORS.barrier(name)
        total, gathered = OPERATORS.all_reduce(partial + 1, name), OPERATORS.all_gather(x, name)
        part = OPERATORS.reduce_scatter(partial + 2, name)
        root = OPERATORS.broadcast(x, 1, name)
        exchanged = OPERATORS.all_to_all(x, None, None, name)
        whole, own = torch.empty_like(gathered), torch.empty_like(part)
        swapped, chosen = torch.empty_like(x), x.clone()
        OPERATORS.all_gather_into(whole, x + 1, name)
        OPERATORS.reduce_scatter_into(own, partial + 3, name)
        OPERATORS.all_to_all_into(swapped, x + 2, None, None, name)
        OPERATORS.broadcast_(chosen, 0, name)
        norm, residual = partial + 4, partial.clone()
        OPERATORS.all_reduce_add_rms_norm_(norm, residual, torch.ones(16), 1e-6, name)
        found = (total, gathered, part, root, exchanged, whole, own, swapped, chosen)
        return partial, *found, norm, residual


def _packaged(world: World, layer: _RowParallel, x: torch.Tensor) -> Any:
    """Return the layer as rank 0 compiles it, for any number of rows, with this rank's weight."""
    path = os.path.join(world.directory, "layer.pt2")
    if world.rank == 0:  # alone: what is exported calls nothing
        rows = 2 * torch.export.Dim("half", min=1, max=64)
        exported = torch.export.export(layer, (x,), dynamic_shapes=({0: rows},))
        # Headers for one compilation; finding out how to vectorize takes half of the time.
        options = {"aot_inductor.precompile_headers": False, "cpp.vec_isa_ok": False}
        torch._inductor.aoti_compile_and_package(
            exported, package_path=path, inductor_configs=options
        )
        world.tell("packaged")
    world.hear("packaged")
    package = torch._inductor.aoti_load_package(path)
    package.load_constants({"weight": layer.weight}, check_full_update=True)
    return package


@on_ranks(2)
def test_aot_inductor(world: World) -> None:
    """One package for all ranks: the bits and the calls of eager layers, and fastcomm's errors."""
    layer = _RowParallel(world, _name(world))

    def inputs(rows: int) -> torch.Tensor:
        return torch.randint(-8, 8, (rows, 8)).float()

    with torch.no_grad():
        package = _packaged(world, layer, inputs(4))
        for rows in (4, 2, 6):
            x = inputs(rows)
            before = len(fd.records())
            expected = layer(x)
            between = len(fd.records())
            found = package(x)
            calls = [call.operation for call in fd.records()]
            assert len(calls) - between == 13 and calls[between:] == calls[before:between]
            assert all(torch.equal(*each) for each in zip(found, expected, strict=True))
        _fails(catch(package, inputs(4 + 4 * world.rank)), "different oper", "64 el", "128 el")
        dist.destroy_process_group()
        world.init(name="interrupted")  # a group of the same name
        x = inputs(2)
        package(x)
        if world.rank == 0:  # other threads run meanwhile
            with interruptible():
                caught = catch(interrupted_in, lambda: package(x))
            world.tell("interrupted")
            _fails(caught, "KeyboardInterrupt")
        else:
            world.hear("interrupted")
            _fails(catch(package, x), "rank 0 was interrupted in all_reduce")
        dist.destroy_process_group()


def _fails(caught: Caught, *said: str) -> None:
    """Check an error that came through AOTInductor, which makes one kind of all."""
    assert caught.kind == "RuntimeError", caught
    if KEEPS_TEXT:
        assert all(each in caught.text for each in said), caught


@on_ranks(2)
def test_fake_kernels_are_like_the_real_ones(world: World) -> None:
    name = _name(world)
    mine = torch.randn(4, 3)
    for call, arguments in (
        (OPERATORS.all_reduce, (mine, name)),
        (OPERATORS.all_gather, (mine, name)),
        (OPERATORS.reduce_scatter, (mine, name)),
        (OPERATORS.broadcast, (mine, 0, name)),
        (OPERATORS.all_to_all, (mine, None, None, name)),
        (OPERATORS.all_reduce_, (mine.clone(), name)),
        (OPERATORS.broadcast_, (mine.clone(), 0, name)),
        (OPERATORS.barrier, (name,)),
    ):
        utils = ("test_schema", "test_faketensor")
        torch.library.opcheck(call.default, arguments, test_utils=utils)


@on_ranks(2)
def test_errors(world: World) -> None:
    name = _name(world)
    tensor = torch.ones(4)
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: OPERATORS.all_reduce_(tensor, "no such group"), "no such group"),
        (lambda: OPERATORS.all_reduce_(tensor, name, "mean"), "not 'mean'"),
        (lambda: OPERATORS.reduce_scatter(torch.ones(3), name), "equal parts"),
        (lambda: OPERATORS.all_gather(torch.tensor(1.0), name), "no dimension"),
    ]
    for call, said in bad:
        with pytest.raises((RuntimeError, ValueError), match=said):
            call()
    caught = catch(lambda: OPERATORS.all_reduce_(torch.ones(4 + world.rank), name))
    assert caught.kind == errors.CollectiveMismatchError.__name__, caught
    dist.destroy_process_group()

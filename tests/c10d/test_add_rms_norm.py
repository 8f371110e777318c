"""``all_reduce_add_rms_norm_``: the bits of its definition, whatever way the sum takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.caught import catch
from support.instruction_sets import NEEDED, skip_unless_it_runs
from support.namespaces import Host
from support.on_ranks import TRANSPORTS, on_ranks
from support.patience import ENDS
from support.ranks import World, run_ranks
from support.rms_norm import add_rms_norm
from support.stores import join_hosts
from support.tree import same_bits, tree_sum
from support.values import cancelling, special

import fastcomm
from fastcomm import errors
from fastcomm._distributed.operators import OPERATORS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-6


def _name(world: World) -> str:
    if not dist.is_initialized():
        world.init()
    name: str = dist.group.WORLD.group_name
    return name


def _values(shape: tuple[int, ...], dtype: torch.dtype, seed: int, odd: bool) -> torch.Tensor:
    count = torch.Size(shape).numel()
    if not odd:
        return (
            torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(dtype).view(shape)
        )
    some = torch.cat([special(dtype, seed), cancelling(dtype, count, seed)])
    return some[:count].view(shape)


def _is_right(
    name: str, mine: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> bool:
    """Compare with the reference, behind the sum that ``all_reduce_`` gives."""
    total, before = mine.clone(), residual.clone()
    OPERATORS.all_reduce_(total, name)
    expected = add_rms_norm(total, before, weight, eps)
    OPERATORS.all_reduce_add_rms_norm_(mine, residual, weight, eps, name)
    return same_bits(mine, expected[0]) and same_bits(residual, expected[1])


@on_ranks(1, 2, 3, environments=TRANSPORTS)
def test_bits_of_any_shape(world: World) -> None:
    name = _name(world)
    wrong = []

    # The same examples on every rank, and each once: ranks must call alike.
    @settings(
        max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
    )
    @given(
        rows=st.integers(1, 5),
        hidden=st.one_of(st.integers(1, 70), st.sampled_from([1024, 4096])),
        dtype=st.sampled_from(DTYPES),
        eps=st.sampled_from([0.0, 1e-6, 1e-5, 0.1]),
        deep=st.booleans(),
        odd=st.booleans(),
        seed=st.integers(0, 2**16),
    )
    def compare(
        rows: int, hidden: int, dtype: torch.dtype, eps: float, deep: bool, odd: bool, seed: int
    ) -> None:
        shape = (1, rows, hidden) if deep else (rows, hidden)
        mine = _values(shape, dtype, seed + world.rank, odd)
        residual, weight = (_values(s, dtype, seed + 9, odd) for s in (shape, (hidden,)))
        if not _is_right(name, mine, residual, weight, eps):
            wrong.append((shape, dtype, eps, odd, seed))

    compare()
    assert not wrong, wrong[:5]


@on_ranks(2, 3, environments=TRANSPORTS)
def test_bits_of_long_messages(world: World) -> None:
    """Sums in one step and in many, in place in shared memory, and of a row that is no one's."""
    name = _name(world)
    for dtype in DTYPES:
        for rows, hidden in ((0, 64), (65, 64), (40, 4096), (200, 4096), (3, 300_001)):
            residual = _values((rows, hidden), dtype, 7, odd=False)
            weight = _values((hidden,), dtype, 8, odd=False)
            mine = _values((rows, hidden), dtype, world.rank, odd=False)
            shared = fastcomm.empty(rows, hidden, dtype=dtype).copy_(mine)
            assert _is_right(name, mine, residual.clone(), weight, EPS), (dtype, rows, hidden)
            assert _is_right(name, shared, residual, weight, EPS), (dtype, rows, hidden)
            assert same_bits(shared, mine)


def _with_one_set(world: World) -> None:
    name = _name(world)
    for dtype in DTYPES:
        for hidden in (1, 33, 64, 1000, 4096):
            terms = [_values((2, hidden), dtype, rank, odd=False) for rank in range(world.size)]
            residual, weight = (
                _values(shape, dtype, 9, odd=False) for shape in ((2, hidden), (hidden,))
            )
            expected = add_rms_norm(tree_sum(terms), residual, weight, EPS)
            mine = terms[world.rank]
            OPERATORS.all_reduce_add_rms_norm_(mine, residual, weight, EPS, name)
            assert same_bits(mine, expected[0]), (dtype, hidden)
            assert same_bits(residual, expected[1]), (dtype, hidden)


@pytest.mark.parametrize("isa", list(NEEDED))
def test_bits_of_each_instruction_set(isa: str) -> None:
    skip_unless_it_runs(isa)
    run_ranks(2, _with_one_set, environment={"FASTCOMM_ISA": isa})


def _over_hosts(world: World, hosts: list[Host], port: int, places: str) -> None:
    join_hosts(world, hosts, port, places)
    _with_one_set(world)


@pytest.mark.serial
def test_bits_over_hosts(hosts: list[Host]) -> None:
    run_ranks(4, _over_hosts, hosts, 29970, "0011")


@on_ranks(2)
def test_a_weight_that_learns_elsewhere(world: World) -> None:
    """Parameters need no gradient here under ``no_grad``."""
    name = _name(world)
    weight = torch.nn.Parameter(torch.ones(8))
    with torch.no_grad():
        x, residual = torch.ones(8), torch.ones(8)
        assert _is_right(name, x, residual, weight, EPS)
    with torch.inference_mode():
        assert _is_right(name, torch.ones(8), torch.ones(8), weight, EPS)


@on_ranks(2, environments=TRANSPORTS)
def test_errors_of_arguments(world: World) -> None:
    """Before anything is sent: the ranks are in step afterwards, and nothing was touched."""
    name = _name(world)
    x, residual, weight = torch.ones(2, 8), torch.ones(2, 8), torch.ones(8)
    learnt = torch.ones(8, requires_grad=True)
    wide, half = torch.ones(2, 16)[:, ::2], torch.ones(2, 8, dtype=torch.half)
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((half, residual, weight), "all must have one dtype"),
        ((x, residual, weight.half()), "all must have one dtype"),
        ((x.double(), residual.double(), weight.double()), "not Double"),
        ((x.int(), residual.int(), weight.int()), "not Int"),
        ((x, torch.ones(8), weight), r"the residual \[8\]"),
        ((x, residual, torch.ones(4)), r"not \[4\]"),
        ((x, residual, torch.ones(1, 8)), r"not \[1, 8\]"),
        ((torch.tensor(1.0), torch.tensor(1.0), torch.ones(1)), "as its rows"),
        ((torch.ones(2, 0), torch.ones(2, 0), torch.ones(0)), "as its rows"),
        ((wide, residual, weight), "x is not contiguous"),
        ((x, wide, weight), "the residual is not contiguous"),
        ((x, residual, torch.ones(16)[::2]), "the weight is not contiguous"),
        ((x, residual, learnt), r"the weight requires grad.*no_grad"),
        ((x, x, weight), "share memory"),
        ((x, residual, residual[1]), "share memory"),
        ((x, residual, x[0]), "share memory"),
    ]
    for arguments, said in cases:
        with pytest.raises(RuntimeError, match=f"all_reduce_add_rms_norm_: .*{said}"):
            OPERATORS.all_reduce_add_rms_norm_(*arguments, EPS, name)
    for eps in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RuntimeError, match="eps is"):
            OPERATORS.all_reduce_add_rms_norm_(x, residual, weight, eps, name)
    with pytest.raises(RuntimeError, match="no such group"):
        OPERATORS.all_reduce_add_rms_norm_(x, residual, weight, EPS, "no such group")
    group = dist.group.WORLD
    assert group is not None
    group._start_coalescing(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="not between startCoalescing and endCoalescing"):
        OPERATORS.all_reduce_add_rms_norm_(x, residual, weight, EPS, name)
    group._end_coalescing(torch.device("cpu")).wait()
    assert torch.equal(x, torch.ones(2, 8)) and torch.equal(residual, torch.ones(2, 8))
    assert _is_right(name, x, residual, weight, EPS)


def _of_rows(rows: int, eps: float) -> Callable[[torch.Tensor, torch.Tensor, str], None]:
    def call(x: torch.Tensor, residual: torch.Tensor, name: str) -> None:
        hidden = 16 // rows
        shaped = (each.view(rows, hidden) for each in (x, residual))
        OPERATORS.all_reduce_add_rms_norm_(*shaped, torch.ones(hidden), eps, name)

    return call


def _plain(x: torch.Tensor, residual: torch.Tensor, name: str) -> None:
    OPERATORS.all_reduce_(x, name)


@on_ranks(2)
def test_ranks_that_call_unlike(world: World) -> None:
    """Plain sums, other rows, another eps: an error that names both, and nothing is touched."""
    world.init()
    ours = "all_reduce_add_rms_norm(sum, float32, 16 elements, rows of 8, eps 1e-06)"
    for other, theirs in (
        (_plain, "all_reduce(sum, float32, 16 elements)"),
        (_of_rows(4, 1e-6), "rows of 4, eps 1e-06"),
        (_of_rows(2, 1e-5), "rows of 8, eps 1e-05"),
    ):
        group = dist.new_group([0, 1])
        x, residual = torch.ones(16), torch.ones(16)
        call = other if world.rank == 1 else _of_rows(2, 1e-6)
        caught = catch(lambda: call(x, residual, group.group_name))  # noqa: B023
        assert caught.kind == errors.CollectiveMismatchError.__name__, caught
        assert ours in caught.text and theirs in caught.text, caught
        assert torch.equal(x, torch.ones(16)) and torch.equal(residual, torch.ones(16))


def _layer(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    partial, kept = x * 2, residual.clone()
    OPERATORS.all_reduce_add_rms_norm_(partial, kept, weight, EPS, name)
    return partial + 1, kept


@on_ranks(2)
def test_compiled_without_a_break(world: World) -> None:
    name = _name(world)
    x = _values((2, 64), torch.bfloat16, world.rank, odd=False)
    residual, weight = (_values(s, torch.bfloat16, 5, odd=False) for s in ((2, 64), (64,)))
    compiled = torch.compile(_layer, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            expected = _layer(x, residual, weight, name)
            found = compiled(x, residual, weight, name)
            assert same_bits(found[0], expected[0]) and same_bits(found[1], expected[1])


@on_ranks(2)
def test_the_fake_kernel_is_like_the_real_one(world: World) -> None:
    arguments = (torch.randn(3, 8), torch.randn(3, 8), torch.ones(8), EPS, _name(world))
    torch.library.opcheck(
        OPERATORS.all_reduce_add_rms_norm_.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )


@on_ranks(2)
def test_no_graph_forgets_a_gradient(world: World) -> None:
    """Compiled as eagerly, what would need a derivative is an error."""
    name = _name(world)
    x, residual, weight = torch.ones(2, 8), torch.ones(2, 8), torch.ones(8, requires_grad=True)
    for layer in (_layer, torch.compile(_layer, fullgraph=True)):
        with pytest.raises(RuntimeError, match=r"there is no derivative.*no_grad"):
            layer(x, residual, weight, name)
    OPERATORS.barrier(name)


WITHOUT_IMPORTS = """
import torch, fastcomm
import torch.distributed as dist
dist.init_process_group("fastcomm", store=dist.HashStore(), rank=0, world_size=1)
call = torch.ops.fastcomm.all_reduce_add_rms_norm_.default
with torch._subclasses.FakeTensorMode():
    call(torch.ones(2, 8), torch.ones(2, 8), torch.ones(8), 1e-6, "no such group")
dist.destroy_process_group()
"""


def test_rules_for_tracing_come_with_a_group() -> None:
    """Without them, a traced call would be a real one, with made-up tensors."""
    words = [sys.executable, "-c", WITHOUT_IMPORTS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=ENDS)
    assert done.returncode == 0, done.stderr

"""fused_all_reduce over ranks: bits, norms, flags, errors; native and where ranks share nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import fused
from support.caught import catch
from support.fused import OPTIONS, gradients
from support.on_ranks import TRANSPORTS, on_ranks
from support.ranks import World, run_ranks

import fastcomm
from fastcomm import _native
from fastcomm.errors import CollectiveMismatchError


def _reals(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _expected(size: int, options: dict[str, Any], seed: int) -> list[torch.Tensor]:
    average, scale = options.get("average", True), options.get("scale", 1.0)
    wire = options.get("comm_dtype")
    places = zip(*(map(_reals, gradients(rank, seed)) for rank in range(size)), strict=True)
    return [fused.reduced(list(terms), average, scale, wire) for terms in places]


def _bits(world: World) -> list[bytes]:
    world.init()
    found = []
    for seed, options in enumerate(OPTIONS):
        norm_type = options.get("norm_type", 2.0)
        grads = gradients(world.rank, seed)
        if norm_type in (1, math.inf):
            grads = grads[:-1]  # no complex ones
        given = [grads[0], None, *grads[1:]]
        result = fastcomm.fused_all_reduce_(given, **options)
        wanted = _expected(world.size, options, seed)[: len(grads)]
        for i, (grad, want) in enumerate(zip(grads, wanted, strict=True)):
            got = _reals(grad)
            assert torch.equal(got, want), (options, i, (got - want).abs().max())
        assert float(result.found_inf) == 0.0
        if norm_type is not None:
            parts = [fused.part(grad, norm_type) for grad in grads]
            assert result.partial_norms.tolist() == parts, options
            assert result.total_norm is not None and result.total_norm.dtype == torch.float64
            assert float(result.total_norm) == fused.norm(parts, norm_type)
            flat = torch.cat([_reals(g).reshape(-1).double() for g in grads])
            exact = float(torch.linalg.vector_norm(flat, norm_type))
            assert abs(float(result.total_norm) - exact) <= 1e-6 * exact
        else:
            assert result.total_norm is None
        found.append(
            b"".join(
                _reals(g).contiguous().view(torch.uint8).numpy().tobytes()
                if g.dim()
                else bytes(g.view(1).view(torch.uint8).tolist())
                for g in grads
            )
        )
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
def test_bits_and_norms_are_those_of_the_definition(size: int) -> None:
    answers = run_ranks(size, _bits)
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(
    "variables", [{"FASTCOMM_TRANSPORT": "gloo"}, {"FASTCOMM_BLOCK_BYTES": "4096"}]
)
def test_groups_without_a_native_path_give_the_same_bits(variables: dict[str, str]) -> None:
    assert run_ranks(3, _bits, environment=variables) == run_ranks(3, _bits)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    available = ["generic", "avx2", "avx512"]
    if available.index(isa) > available.index(_native.load().reduce_isa()):
        pytest.skip(f"this processor has no {isa}")
    assert run_ranks(2, _bits, environment={"FASTCOMM_ISA": isa}) == run_ranks(2, _bits)


@on_ranks(2, 3, 6, environment={"FASTCOMM_BLOCK_BYTES": "131072"})
def test_long_lists_take_many_blocks(world: World) -> None:
    """Reduce lists of several hundred blocks, of tensors no two of which have the same size."""
    world.init()
    sizes = [1 + 977 * i % 20011 for i in range(60)]
    grads = [torch.full((size,), float(world.rank + i)) for i, size in enumerate(sizes)]
    result = fastcomm.fused_all_reduce_(grads)
    mean = (world.size - 1) / 2
    squares = 0.0
    for i, grad in enumerate(grads):
        assert torch.equal(grad, torch.full_like(grad, mean + i)), i
        squares += len(grad) * (mean + i) ** 2
    assert math.isclose(float(result.total_norm), math.sqrt(squares), rel_tol=1e-6)


@on_ranks(2)
def test_the_norm_is_the_same_for_every_split(world: World) -> None:
    """Check that neither norm nor bits depend on how gradients are divided among calls."""
    world.init()
    whole = [
        torch.randn(n, generator=torch.Generator().manual_seed(n + world.rank))
        for n in (5000, 3, 12289, 640, 4096)
    ]
    pieces = [grad.clone() for grad in whole]
    one = fastcomm.fused_all_reduce_(whole)
    several = [
        fastcomm.fused_all_reduce_(pieces[a:b], async_op=True) for a, b in ((3, 5), (0, 1), (1, 3))
    ]
    for result in several:
        result.wait()
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))
    parts = torch.cat(
        [several[1].partial_norms, several[2].partial_norms, several[0].partial_norms]
    )
    assert fastcomm.combined_norm(parts).float() == one.total_norm


@on_ranks(2)
def test_infinities_and_nans_are_found_wherever_they_are(world: World) -> None:
    world.init()
    for bad in (math.inf, -math.inf, math.nan):
        for where in (0, 4095, 4096, 9999):
            for wire in (None, torch.bfloat16):
                grads = [torch.ones(10), torch.ones(10000)]
                if world.rank == 1:
                    grads[1][where] = bad
                result = fastcomm.fused_all_reduce_(grads, comm_dtype=wire, norm_type=math.inf)
                assert float(result.found_inf) == 1.0
                assert math.isnan(float(result.total_norm)) == math.isnan(bad)
    grads = [torch.full((5000,), 6e4)]  # finite in fp32, not in fp16 on the way back
    result = fastcomm.fused_all_reduce_(grads, average=False, comm_dtype=torch.float16)
    assert float(result.found_inf) == 1.0
    result = fastcomm.fused_all_reduce_([torch.full((50,), 6e4)], comm_dtype=torch.float16)
    assert float(result.found_inf) == 0.0


@on_ranks(1, 2, 3, environments=TRANSPORTS)
def test_error_feedback(world: World) -> None:
    """Check that residuals have the bits of the definition; sums over steps lose nothing."""
    world.init()
    sizes, wire = [5000, 3, 0, 4097], torch.bfloat16
    all_kept = [[torch.zeros(n) for n in sizes] for _ in range(world.size)]
    mine = [torch.zeros(n) for n in sizes]
    for step in range(4):
        given = [
            [torch.randn(n, generator=torch.Generator().manual_seed(90 * step + r)) for n in sizes]
            for r in range(world.size)
        ]
        if step == 2:
            given[0][0][7] = math.inf  # leaves no residual
        terms = []
        for grads, kept in zip(given, all_kept, strict=True):
            values = [g + k for g, k in zip(grads, kept, strict=True)]
            for value, keep in zip(values, kept, strict=True):
                left = value - value.to(wire).float()
                keep.copy_(torch.where(left.isfinite(), left, 0.0))
            terms.append(values)
        wanted = [fused.reduced(list(v), True, 0.5, wire) for v in zip(*terms, strict=True)]
        grads = given[world.rank]
        # Where a gradient is None so is its residual; fp64 is not rounded.
        double = torch.full((2,), 1 / 3, dtype=torch.float64)
        native = fastcomm.explain("all_reduce").native
        pairs = torch.full((3,), 1 / 3 + 2j, dtype=torch.complex64)
        left_of_pairs = torch.zeros(3, dtype=torch.complex64)
        if not native:
            with pytest.raises(ValueError, match="complex"):
                fastcomm.fused_all_reduce_([pairs], comm_dtype=wire, residuals=[left_of_pairs])
        else:
            fastcomm.fused_all_reduce_([pairs], comm_dtype=wire, residuals=[left_of_pairs])
            assert torch.equal(left_of_pairs.real, 1 / 3 - pairs.real) and not pairs.imag[0] - 2
        fastcomm.fused_all_reduce_(
            [grads[0], None, *grads[1:], double],
            scale=0.5,
            comm_dtype=wire,
            residuals=[mine[0], None, *mine[1:], torch.zeros(2)],
            norm_type=None if world.size == 3 else 2.0,
        )
        for got, want in zip(grads, wanted, strict=True):
            assert torch.equal(got, want), step
        for got, want in zip(mine, all_kept[world.rank], strict=True):
            assert torch.equal(got, want), step
    for bad in ([torch.zeros(3)], [torch.zeros(5, dtype=torch.float64)], []):
        with pytest.raises(ValueError, match=r"residual|argument 2"):
            fastcomm.fused_all_reduce_([torch.ones(5)], comm_dtype=wire, residuals=bad)


@on_ranks(2, 3, 5)
def test_lists_in_shared_memory_have_the_same_bits(world: World) -> None:
    """Lists that lie alike in shared memory need no slots: same bits, however they lie."""
    world.init()
    sizes = [7, 70001, 4096, 12289]
    for shared_by in (range(world.size), range(1)):
        for gap in (0, 64):
            at: int = gap if world.rank == 1 and gap == 64 else 0
            grads = []
            lengths = sum(sizes) + 1000
            memory = fastcomm.empty(lengths) if world.rank in shared_by else torch.empty(lengths)
            for n in sizes:
                generator = torch.Generator().manual_seed(n + world.rank)
                grads.append(memory[at : at + n].copy_(torch.randn(n, generator=generator)))
                at += n
            apart = [grad.clone() for grad in grads]
            for norm_type in (2.0, None, math.inf):
                result = fastcomm.fused_all_reduce_(grads, norm_type=norm_type, async_op=True)
                wanted = fastcomm.fused_all_reduce_(apart, norm_type=norm_type)
                result.wait()
                assert all(torch.equal(a, b) for a, b in zip(grads, apart, strict=True))
                assert result.partial_norms.tolist() == wanted.partial_norms.tolist()
                assert result.total_norm == wanted.total_norm
            grads[1][7] = math.nan
            assert float(fastcomm.fused_all_reduce_(grads).found_inf) == 1.0


def _sevens(*shape: int) -> torch.Tensor:
    return torch.full(shape, 7.0)


GIVEN = [_sevens(5, 4), _sevens(5000)]
DOUBLES = [_sevens(7).double(), _sevens().double()]
# What rank 1 gives instead.
DIFFERENCES: dict[str, tuple[list[torch.Tensor], dict[str, Any]]] = {
    "count": ([*GIVEN, _sevens(1)], {}),
    "shape": ([_sevens(4, 5), GIVEN[1]], {}),
    "strides": ([_sevens(4, 5).t(), GIVEN[1]], {}),
    "dtype": ([GIVEN[0], GIVEN[1].double()], {}),
    "dimensions": (DOUBLES[::-1], {}),
    "average": (GIVEN, {"average": False}),
    "scale": (GIVEN, {"scale": 2.0}),
    "wire": (GIVEN, {"comm_dtype": torch.bfloat16}),
    "norm": (GIVEN, {"norm_type": 1}),
}


@pytest.mark.parametrize("kind", DIFFERENCES)
@on_ranks(2)
def test_lists_that_differ_are_an_error_and_nothing_is_touched(world: World, kind: str) -> None:
    world.init()
    grads, options = DIFFERENCES[kind]
    if world.rank == 0:
        grads, options = DOUBLES if kind == "dimensions" else GIVEN, {}
    error = catch(fastcomm.fused_all_reduce_, grads, **options)
    assert error.kind == CollectiveMismatchError.__name__, error
    assert all(bool((grad == 7).all()) for grad in grads)
    assert "fused_all_reduce" in error.text and "2 gradients, norm 2: [" in error.text


@on_ranks(2, environments=TRANSPORTS)
def test_what_cannot_be_reduced_is_refused_before_anything_is_sent(world: World) -> None:
    world.init()
    one = torch.ones(4)
    for grads, words in (
        ([one, torch.eye(3).to_sparse()], "gradient 1 is Sparse"),
        ([torch.ones(3, dtype=torch.int32)], "not floating-point"),
        ([torch.ones(1).expand(5)], "overlaps itself"),
        ([one, one[2:]], "gradients 0 and 1 share memory"),
        ([one, one], "share memory"),
        ([torch.ones(3, device="meta")], "meta"),
    ):
        with pytest.raises(ValueError, match=words):
            fastcomm.fused_all_reduce_(grads)
    with pytest.raises(ValueError, match="norm_type is 1, 2, inf or None, not 3"):
        fastcomm.fused_all_reduce_([one], norm_type=3)
    with pytest.raises(ValueError, match="comm_dtype is"):
        fastcomm.fused_all_reduce_([one], comm_dtype=torch.float64)
    assert torch.equal(one, torch.ones(4))
    fastcomm.fused_all_reduce_([one])  # the group is unharmed
    result = fastcomm.fused_all_reduce_([])
    assert float(result.total_norm) == 0.0 and result.partial_norms.shape == (0,)
    dist.barrier()

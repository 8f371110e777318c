import itertools
from typing import Any

import pytest
import torch
from support import bench_ranks
from support.measured import launched
from support.patience import ENDS

from fastcomm import _native
from fastcomm._measure.cases import CASES, pattern, pattern_sum
from fastcomm._measure.cases.base import operands, reduced

# On these ranks the right values are there before the call.
UNTOUCHED = {
    ("broadcast", 0),
    ("reduce", 1),
    ("gather", 1),
    ("send_recv_stream", 0),
}
# Whoever comes last may leave at once; that is this rank, unless the other lost its processor.
LAST = ("barrier", 1)

# fastcomm's own operations, which Gloo does not have; benchmarks/fused_reduce.py and
# benchmarks/add_rms_norm.py measure them.
OWN = {"fused_reduce_scatter", "gather_shards", "all_reduce_add_rms_norm"}
OF_GLOO = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]
EVERY = [*OF_GLOO, "int16", "complex64", "complex128"]


PARTS = ("all_gather", "all_to_all", "reduce_scatter", "gather", "scatter")
# What a link has to carry at least, as a multiple of the size: of two ranks, four and eight.
BUS_FACTORS = {
    (1.0, 1.5, 1.75): [name for name in CASES if "all_reduce" in name],
    (0.5, 0.75, 0.875): [name for name in CASES if name.startswith(PARTS)],
    (1.0, 1.0, 1.0): ["broadcast", "reduce", "send_recv", "send_recv_stream"],
    (0.0, 0.0, 0.0): ["barrier", "new_group", "new_group_x100"],
}


@pytest.mark.parametrize("factors", BUS_FACTORS)
def test_bus_factor(factors: tuple[float, float, float]) -> None:
    for name in BUS_FACTORS[factors]:
        assert tuple(CASES[name].bus_factor(ranks) for ranks in (2, 4, 8)) == factors, name
    assert sorted(itertools.chain(*BUS_FACTORS.values())) == sorted(CASES)


@pytest.mark.parametrize("ranks", [2, 3])
def test_sizes_are_of_one_rank_or_of_the_result(ranks: int) -> None:
    reduce = CASES["all_reduce"](4096, torch.float32, 0, ranks)
    assert (reduce.nbytes, reduce.numel) == (4096, 1024)
    gather = CASES["all_gather"](4096, torch.float32, 0, ranks)
    assert gather.numel == 1024 // ranks
    assert gather.nbytes == gather.numel * ranks * 4
    scatter = CASES["reduce_scatter_tensor"](4096, torch.float32, 0, ranks)
    assert (scatter.nbytes, scatter.numel) == (gather.nbytes, gather.numel)
    # At least one element for each rank, and the size says so.
    assert CASES["all_gather"](4, torch.float64, 0, ranks).nbytes == 8 * ranks
    assert CASES["all_reduce_coalesced"](4, torch.float64, 0, ranks).nbytes == 8 * 16
    parts = CASES["all_gather_into_tensor_coalesced"](4, torch.float64, 0, ranks)
    assert parts.nbytes == 8 * 16 * ranks
    assert CASES["barrier"](4096, torch.float32, 0, ranks).nbytes == 0


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float16, torch.float32]
)
def test_the_sum_of_the_pattern_is_exact(dtype: torch.dtype) -> None:
    parts = [pattern(20_000, dtype, rank) for rank in range(8)]
    total = torch.zeros(20_000, dtype=dtype)
    for part in parts:
        total += part
    wide = torch.stack(parts).to(torch.int64)
    assert torch.equal(total.to(torch.int64), wide.amax(0) if dtype == torch.bool else wide.sum(0))
    assert torch.equal(pattern_sum(20_000, dtype, 8), total)


@pytest.mark.parametrize(("backend", "dtypes"), [("gloo", OF_GLOO), ("fastcomm", EVERY)])
def test_checks_pass_and_see_an_operation_that_does_nothing(
    backend: str, dtypes: list[str]
) -> None:
    ranks = launched(bench_ranks.check_cases, 2, backend, dtypes, timeout_s=ENDS)
    for rank, found in enumerate(ranks):
        for (name, dtype), (good, broken) in found.items():
            assert good == 0, (name, dtype)
            case, _, reduction = name.partition("(")
            if (name, rank) == LAST or (case, rank) in UNTOUCHED:
                continue
            # Ones and twos may be their own result; bool always is.
            assert broken != 0 or reduction, (name, dtype, rank)


@pytest.mark.parametrize(
    ("reduction", "wanted"),
    [("avg", 1.5), ("min", 1), ("max", 2), ("product", 4), ("band", 0), ("bor", 3), ("bxor", 0)],
)
def test_what_comes_of_ones_and_twos(reduction: str, wanted: float) -> None:
    size = 4 if reduction in ("product", "bxor") else 2
    dtype = torch.float32 if reduction == "avg" else torch.int32
    given = [operands(100, dtype, rank, reduction) for rank in range(size)]
    assert {float(x) for x in torch.cat(given)} == {1.0, 2.0}
    assert reduced(100, dtype, size, reduction).tolist() == [wanted] * 100


def test_reductions_that_mean_nothing_are_told() -> None:
    for dtype, reduction, why in [
        (torch.float32, "bor", "of integers"),
        (torch.complex64, "max", "complex"),
        (torch.bool, "avg", "bool"),
        (torch.float32, "max", ""),
    ]:
        case = CASES["all_reduce"](64, dtype, 0, 2)
        case.reduction = reduction
        assert why in case.why_not() and bool(case.why_not()) == bool(why)
        assert case.label == f"all_reduce({reduction})"
    assert CASES["fused_all_reduce"](64, torch.int32, 0, 2).why_not()


def test_every_operation_has_a_case() -> None:
    both = {"send", "recv"}  # one case, "send_recv"
    assert set(_native.load().operations()) - set(CASES) - both == OWN and "send_recv" in CASES


def test_a_last_rank_without_a_peer_is_idle() -> None:
    pairs: list[Any] = [CASES["send_recv"](8, torch.int8, rank, 3) for rank in range(3)]
    assert [pair.idle for pair in pairs] == [False, False, True]

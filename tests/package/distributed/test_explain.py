"""explain(): it must say what the backend does, so it is compared with what the backend does."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks

import fastcomm


def test_without_a_group_it_imagines_one() -> None:
    small = fastcomm.explain("all_reduce", count=10)
    assert small.native and small.algorithm == "one-shot" and small.bytes == 40
    large = fastcomm.explain("broadcast", torch.empty(1 << 20), world_size=4)
    assert large.native and large.algorithm == "pipelined" and large.bytes == 4 << 20
    # A one-shot all_reduce reads every peer's message: its limit falls with their number.
    limit = fastcomm.explain("all_reduce", count=16_384)
    assert limit.algorithm == "one-shot"
    assert fastcomm.explain("all_reduce", count=16_384, world_size=8).algorithm == "pipelined"
    assert fastcomm.explain("broadcast", count=16_384, world_size=8).algorithm == "one-shot"
    for operation in ("reduce_scatter", "reduce_scatter_tensor", "all_gather_into_tensor"):
        assert fastcomm.explain(operation, count=8).algorithm == "one-shot"
        assert fastcomm.explain(operation, count=1 << 20).algorithm == "pipelined"
    for op in ("premul_sum", "max"):
        assert fastcomm.explain("reduce_scatter", count=8, op=op).native
    assert fastcomm.explain("gather", count=8).algorithm == "by table"
    assert fastcomm.explain("barrier").algorithm == "flags"
    for operation in ("send", "recv"):
        assert fastcomm.explain(operation, count=3).algorithm == "ring"
    assert fastcomm.explain("all_reduce", count=3, world_size=1).algorithm == "nothing"


@on_ranks(1, environment={"FASTCOMM_TRANSPORT": "gloo"})
def test_one_rank_needs_no_transport(world: World) -> None:
    assert not fastcomm.explain("all_reduce", count=3).native
    imagined = fastcomm.explain("all_reduce", count=3, world_size=1)
    world.init()
    formed = fastcomm.explain("all_reduce", count=3)
    assert imagined == formed and formed.native


@pytest.mark.parametrize(
    ("operation", "op", "dtype", "words"),
    [
        ("gossip", "sum", torch.float32, "no such operation"),
        ("all_reduce", "bxor", torch.float32, "reduction of float32: bits of integers only"),
        ("all_reduce", dist.ReduceOp.AVG, torch.bool, "reduction of bool: use sum or max"),
        ("reduce_scatter", "premul_sum", torch.int32, "multiply before"),
        ("reduce_scatter", "bxor", torch.float32, "bits of integers only"),
        ("all_reduce", "sum", torch.float8_e5m2, "no native kernel"),
        ("all_reduce", dist.ReduceOp.MAX, torch.complex64, "complex numbers have sum"),
    ],
)
def test_what_is_not_native_has_a_reason(
    operation: str, op: str | dist.ReduceOp.RedOpType, dtype: torch.dtype, words: str
) -> None:
    answer = fastcomm.explain(operation, count=8, op=op, dtype=dtype)
    assert not answer.native and answer.algorithm == "refused"
    assert words in str(answer) and ": refused (" in str(answer)


def test_complex_is_taken_as_pairs_and_unknown_types_as_bytes() -> None:
    assert fastcomm.explain("all_reduce", torch.empty(8, dtype=torch.complex64)).bytes == 64
    assert fastcomm.explain("all_reduce", count=2, dtype=torch.uint32, op="bor").native
    answer = fastcomm.explain("broadcast", torch.empty(8, dtype=torch.float8_e5m2))
    assert answer.native and answer.bytes == 8


def test_a_large_all_reduce_tells_whether_the_tensor_is_shared() -> None:
    def said(tensor: torch.Tensor) -> str:
        return fastcomm.explain("all_reduce", tensor).reason

    assert "in place where every rank's tensor lies in shared memory" in said(torch.empty(400_000))
    assert said(torch.empty(400_000)).endswith("this rank's tensor does not")
    assert said(fastcomm.empty(400_000)).endswith("this rank's tensor does")
    assert said(fastcomm.empty(300_000)).endswith("this rank's tensor does")
    assert "this rank's tensor" not in said(fastcomm.empty(2))
    assert "this rank's tensor" not in fastcomm.explain("broadcast", fastcomm.empty(100_000)).reason


def _in_a_group(world: World) -> list[tuple[bool, str, str]]:
    world.init("gloo")
    dist.barrier()  # a rank that leaves earlier ends connections that others are making
    with pytest.raises(ValueError, match="needs a process group of backend fastcomm"):
        fastcomm.explain("all_reduce")
    dist.destroy_process_group()
    world.init(name="second")
    counts = (1, 1000, 262_144, 262_145, 500_000)
    answers = [fastcomm.explain("all_reduce", torch.empty(count)) for count in counts]
    return [(answer.native, answer.algorithm, answer.reason) for answer in answers]


def test_every_rank_gives_the_same_answer_for_its_group() -> None:
    first, second = run_ranks(2, _in_a_group)
    assert first == second
    assert [algorithm for _, algorithm, _ in first] == ["one-shot"] * 3 + ["pipelined"] * 2
    assert all(native and "shared memory (memfd)" in reason for native, _, reason in first)


@on_ranks(2)
def test_rank_0_decides_for_all_where_settings_differ(world: World) -> None:
    os.environ["FASTCOMM_ONE_SHOT_BYTES"] = "1024" if world.rank == 0 else "65536"
    world.init()
    dist.all_reduce(tensor := torch.ones(1000))  # would hang if the ranks chose differently
    assert tensor.eq(2).all()
    assert fastcomm.explain("all_reduce", tensor).algorithm == "pipelined"

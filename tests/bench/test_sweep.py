from collections.abc import Callable
from typing import Any

import pytest
import torch
from sim.loading import load

from fastcomm._measure.cases import CASES
from fastcomm._measure.timing import Samples
from fastcomm.bench.sweep import SweepOptions, make_row, share_of

Sweep = Callable[..., list[dict[str, Any]]]


def test_an_operation_without_size_occurs_once() -> None:
    options = SweepOptions(("barrier", "broadcast"), (8, 64), ("gloo",))
    assert list(options.points()) == [
        ("barrier", 0, "sum"),
        ("broadcast", 8, "sum"),
        ("broadcast", 64, "sum"),
    ]


def test_what_reduces_is_measured_by_each_reduction(sweep: Sweep) -> None:
    types = ("float32", "int32")
    choice = {"dtypes": types, "reductions": ("sum", "max", "bor"), "iterations": 5, "warm_up": 0}
    rows = sweep(("all_reduce", "all_gather"), (64,), ("gloo",), **choice)
    shown = {(row["op"], row["dtype"]) for row in rows if "median_us" in row}
    assert shown == {
        *((op, dtype) for op in ("all_reduce", "all_reduce(max)") for dtype in types),
        ("all_reduce(bor)", "int32"),
        *(("all_gather", dtype) for dtype in types),
    }
    (left_out,) = (row for row in rows if "left_out" in row)
    assert (left_out["op"], left_out["dtype"]) == ("all_reduce(bor)", "float32")
    assert "integers" in left_out["left_out"]


def test_a_row_has_the_bandwidths_of_the_median() -> None:
    options = SweepOptions(("all_reduce",), (4096,), ("gloo",), ranks=4)
    case = CASES["all_reduce"](4096, torch.float32, 0, 4)
    row = make_row(case, "gloo", options, Samples([[1000, 2000], [4096, 9000, 9000]]))
    assert (row["iterations"], row["min_us"], row["median_us"]) == (5, 1.0, 4.096)
    assert (row["algbw_gbs"], row["busbw_gbs"]) == (1.0, 1.5)
    assert row["batch_median_us"] == [1.5, 9.0]


def test_a_row_has_the_time_of_one_message() -> None:
    options = SweepOptions(("send_recv",), (4096,), ("gloo",))
    case = CASES["send_recv"](4096, torch.float32, 0, 2)
    row = make_row(case, "gloo", options, Samples([[8192, 8192]]))
    assert (row["median_us"], row["busbw_gbs"], row["batch_median_us"]) == (4.096, 1.0, [4.096])


def test_points_that_overrun_do_not_starve_the_others() -> None:
    assert share_of(100.0, 50, 100.0, 50) == 2.0
    assert share_of(100.0, 50, 60.0, 10) == 6.0
    assert share_of(100.0, 50, -20.0, 10) == 1.0


def test_ranks_and_types_in_turns_and_a_size_that_comes_twice_once(sweep: Sweep) -> None:
    ops, types = ("all_reduce_coalesced", "all_gather", "barrier"), ("int64", "bfloat16")
    rows = sweep(ops, (8, 64, 1000), ("gloo",), ranks=3, dtypes=types, budget_s=0.5)
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        found.setdefault((row["op"], row["dtype"]), []).append(row["bytes"])
    assert found == {
        ("all_reduce_coalesced", "int64"): [128, 896],  # 16 elements at least
        ("all_reduce_coalesced", "bfloat16"): [32, 64, 992],
        ("all_gather", "int64"): [24, 48, 984],
        ("all_gather", "bfloat16"): [6, 60, 996],
        **{("barrier", dtype): [0] for dtype in types},
    }
    assert [row["dtype"] for row in rows][-4:] == [*types, *types]
    assert all(row["checked"] and row["ranks"] == 3 for row in rows)


@pytest.mark.usefixtures("simulated")
def test_devices_and_a_backend_that_is_left_out(sweep: Sweep) -> None:
    ops = ("all_reduce", "all_reduce_shared", "reduce_scatter_tensor", "all_to_all_single")
    rows = sweep(
        (*ops, "barrier", "new_group"),
        (64, 40_000),
        ("fastcomm", "symm_mem_two_shot", "nccl"),
        budget_s=0.5,
        device="sim",
        prepare=load,
    )
    ours = [row for row in rows if row["backend"] == "fastcomm"]
    assert len(ours) == 2 * len(ops) + 2
    assert {row["op"] for row in ours} == {*ops, "barrier", "new_group"}
    for row in ours:
        assert row["checked"] and row["device"] == "sim" and row["clock"] == "wall"
        assert row["calls"] >= 1 and "host_us" not in row
    others = [row for row in rows if row["backend"] != "fastcomm"]
    assert others and all(row["left_out"] for row in others)

from typing import Any

import pytest
import torch
from sim.loading import load

from fastcomm.bench.cases import CASES
from fastcomm.bench.sweep import SweepOptions, make_row, run_sweep, share_of
from fastcomm.bench.timing import Samples


def test_an_operation_without_size_occurs_once() -> None:
    options = SweepOptions(("barrier", "broadcast"), (8, 64), ("gloo",))
    assert list(options.points()) == [
        ("barrier", 0, "sum"),
        ("broadcast", 8, "sum"),
        ("broadcast", 64, "sum"),
    ]


def test_what_reduces_is_measured_by_each_reduction() -> None:
    rows: list[dict[str, Any]] = []
    options = SweepOptions(
        ("all_reduce", "all_gather"),
        (64,),
        ("gloo",),
        dtypes=("float32", "int32"),
        reductions=("sum", "max", "bor"),
        iterations=5,
        warm_up=0,
    )
    run_sweep(options, rows.append)
    shown = {(row["op"], row["dtype"]) for row in rows if "median_us" in row}
    assert shown == {
        *((op, dtype) for op in ("all_reduce", "all_reduce(max)") for dtype in options.dtypes),
        ("all_reduce(bor)", "int32"),
        *(("all_gather", dtype) for dtype in options.dtypes),
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


def test_three_ranks_and_another_type() -> None:
    rows: list[dict[str, Any]] = []
    ops = ("all_reduce", "all_gather", "barrier")
    options = SweepOptions(ops, (8, 1000), ("gloo",), ranks=3, dtypes=("int64",), budget_s=0.5)
    run_sweep(options, rows.append)
    assert [(row["op"], row["bytes"]) for row in rows] == [
        ("all_reduce", 8),
        ("all_reduce", 1000),
        ("all_gather", 24),
        ("all_gather", 984),
        ("barrier", 0),
    ]
    assert all(row["checked"] and row["ranks"] == 3 for row in rows)


def test_points_that_overrun_do_not_starve_the_others() -> None:
    assert share_of(100.0, 50, 100.0, 50) == 2.0
    assert share_of(100.0, 50, 60.0, 10) == 6.0
    assert share_of(100.0, 50, -20.0, 10) == 1.0


def test_a_size_that_comes_twice_is_measured_once() -> None:
    rows: list[dict[str, Any]] = []
    options = SweepOptions(("all_reduce_coalesced",), (8, 64, 4096), ("gloo",), budget_s=0.3)
    run_sweep(options, rows.append)
    assert [row["bytes"] for row in rows] == [64, 4096]


def test_a_row_has_the_time_of_one_message() -> None:
    options = SweepOptions(("send_recv",), (4096,), ("gloo",))
    case = CASES["send_recv"](4096, torch.float32, 0, 2)
    row = make_row(case, "gloo", options, Samples([[8192, 8192]]))
    assert (row["median_us"], row["busbw_gbs"], row["batch_median_us"]) == (4.096, 1.0, [4.096])


def test_types_are_measured_in_turns_and_shown() -> None:
    rows: list[dict[str, Any]] = []
    types = ("float32", "bfloat16", "uint8")
    run_sweep(
        SweepOptions(("all_reduce",), (64,), ("gloo",), dtypes=types, budget_s=1), rows.append
    )
    assert [(row["dtype"], row["bytes"], row["checked"]) for row in rows] == [
        (name, 64, True) for name in types
    ]


@pytest.mark.usefixtures("simulated")
def test_devices_and_a_backend_that_is_left_out() -> None:
    rows: list[dict[str, Any]] = []
    ops = ("all_reduce", "all_reduce_shared", "reduce_scatter_tensor", "all_to_all_single")
    options = SweepOptions(
        (*ops, "barrier", "new_group"),
        (64, 40_000),
        ("fastcomm", "symm_mem_two_shot", "nccl"),
        budget_s=0.5,
        device="sim",
        prepare=load,
    )
    run_sweep(options, rows.append)
    ours = [row for row in rows if row["backend"] == "fastcomm"]
    assert len(ours) == 2 * len(ops) + 2
    assert {row["op"] for row in ours} == {*ops, "barrier", "new_group"}
    for row in ours:
        assert row["checked"] and row["device"] == "sim" and row["clock"] == "wall"
        assert row["calls"] >= 1 and "host_us" not in row
    others = [row for row in rows if row["backend"] != "fastcomm"]
    assert others and all(row["left_out"] for row in others)

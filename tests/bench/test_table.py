from typing import Any

import pytest

from fastcomm.bench.table import format_summary, format_table, left_out, measured, ratios

pytest.importorskip("tabulate")


def test_ratios_are_medians_of_the_baseline_over_this(rows: list[dict[str, Any]]) -> None:
    assert ratios(rows, "gloo") == [20.0, None] * 5
    assert ratios([rows[0]], "gloo") == [None]


def test_the_table_names_units_and_shows_every_row(rows: list[dict[str, Any]]) -> None:
    lines = format_table(rows).splitlines()
    for title in ("min [µs]", "median [µs]", "p99 [µs]", "algbw [GB/s]", "busbw [GB/s]"):
        assert title in lines[0]
    assert "gloo / this" in lines[0]
    assert len(lines) == 2 + len(rows)
    assert " ".join(lines[4].split()) == "64 KiB fastcomm 5.00 10.00 30.00 6.55 6.55 20.0"
    assert lines[-2].split() == ["barrier", "fastcomm", "5.00", "10.00", "30.00", "20.0"]


def test_types_of_elements_are_compared_apart(rows: list[dict[str, Any]]) -> None:
    half = [{**row, "dtype": "float16", "median_us": row["median_us"] * 2} for row in rows]
    assert ratios([*rows, *half], "gloo") == [20.0, None] * 10
    lines = format_table([*rows, *half]).splitlines()
    assert "dtype" in lines[0] and len(lines) == 2 + 2 * len(rows)
    assert lines[4].split()[2:4] == ["float32", "fastcomm"]


def test_a_summary_has_a_line_for_each_point(rows: list[dict[str, Any]]) -> None:
    lines = format_summary(rows).splitlines()
    assert len(lines) == 2 + len(rows) / 2
    assert "fastcomm [µs]" in lines[0] and lines[0].endswith("gloo / fastcomm")
    assert lines[3].split() == ["all_reduce", "64", "KiB", "10.00", "200", "20.0"]
    assert lines[-1].split() == ["barrier", "10.00", "200", "20.0"]
    alone = format_summary([{**row, "dtype": "int8"} for row in rows[:1]] + rows[2:3]).splitlines()
    assert alone[2].split() == ["all_reduce", "8", "B", "int8", "10.00"]


def test_the_style_is_tabulates(rows: list[dict[str, Any]]) -> None:
    assert format_table(rows, "github").startswith("| operation")
    assert "operation" in format_table([])


def test_who_was_left_out_is_below_the_table(rows: list[dict[str, Any]]) -> None:
    for op in ("all_reduce", "broadcast", "all_reduce"):
        rows.append({"op": op, "bytes": 8, "backend": "nccl", "left_out": "one device for two"})
    note = "nccl left out of all_reduce, broadcast: one device for two"
    assert left_out(rows) == [note] and len(measured(rows)) == 10
    assert format_table(rows).splitlines()[-1] == note


def test_the_hosts_time_has_a_column_where_it_was_taken(rows: list[dict[str, Any]]) -> None:
    assert "host" not in format_table(rows)
    rows[0]["host_us"] = 3.25
    lines = format_table(rows).splitlines()
    assert "host [µs]" in lines[0] and "3.25" in lines[2].split() and "wall" in lines[3].split()

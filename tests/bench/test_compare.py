import copy
from pathlib import Path
from typing import Any

import pytest

from fastcomm.bench.compare import main
from fastcomm.bench.records import RecordWriter

pytest.importorskip("tabulate")

Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> str:
    with RecordWriter(path, []) as writer:
        for row in rows:
            writer.write(row)
    return str(path)


def test_a_planted_regression_is_found(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    slower = copy.deepcopy(rows)
    slower[2]["median_us"] *= 1.5
    old, new = write(tmp_path / "old", rows), write(tmp_path / "new", slower)
    assert main([old, old]) == 0
    assert main([new, old]) == 0  # faster is no regression
    assert main([old, new, "--threshold", "1.6"]) == 0
    capsys.readouterr()
    assert main([old, new]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("slower"))
    assert line.split() == [
        "all_reduce",
        "64",
        "KiB",
        "fastcomm",
        "10.000",
        "15.000",
        "1.50",
        "slower",
    ]


def test_several_files_are_compared_with_the_first(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, factor in (("a", 1.0), ("b", 1.1), ("c", 2.0)):
        of_file = copy.deepcopy(rows)
        of_file[0]["median_us"] *= factor
        paths.append(write(tmp_path / name, of_file))
    assert main(paths[:2]) == 0 and main(paths) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"C: {paths[2]}" in lines
    assert any("B / A" in line and "C / A" in line for line in lines)
    (line,) = (line for line in lines if line.endswith("slower"))
    assert line.split()[-6:] == ["10.000", "11.000", "20.000", "1.10", "2.00", "slower"]


def test_a_file_that_is_none_is_status_2(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([write(tmp_path / "a", rows), str(tmp_path / "none")]) == 2
    assert "cannot compare" in capsys.readouterr().err


def test_relative_comparison_ignores_a_slower_machine(tmp_path: Path, rows: list[Row]) -> None:
    everything = copy.deepcopy(rows)
    for row in everything:
        row["median_us"] *= 3
    old, new = write(tmp_path / "old", rows), write(tmp_path / "new", everything)
    assert main([old, new]) == 1
    assert main([old, new, "--relative-to", "gloo"]) == 0
    everything[0]["median_us"] *= 2
    assert main([old, write(tmp_path / "more", everything), "--relative-to", "gloo"]) == 1


def test_nothing_in_common(tmp_path: Path, rows: list[Row]) -> None:
    old, new = write(tmp_path / "old", rows[:1]), write(tmp_path / "new", rows[1:])
    assert main([old, new]) == 2

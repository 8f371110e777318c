import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.patience import ENDS

from fastcomm._measure import line_up
from fastcomm._measure.contenders import Contender
from fastcomm.bench.cli import main
from fastcomm.bench.records import read_records

pytest.importorskip("tabulate")
pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")

Row = dict[str, Any]


def test_a_small_run_writes_records_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backends", "gloo,gloo", "--sizes", "8,1K", "--budget", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.jsonl")
    records = read_records(path)
    assert len(records.rows) == (4 * 2 + 1) * 2
    assert str(tmp_path) not in path.read_text()
    plot = path.with_suffix(".png")
    assert plot.stat().st_size > 20_000
    assert "gloo-2 / this" in capsys.readouterr().out

    plot.unlink()
    assert main(["--table", str(path), "--plot", str(path), "--style", "github"]) == 0
    assert plot.exists()
    assert "| all_reduce" in capsys.readouterr().out


def test_quiet_with_json_shows_nothing_and_needs_no_more_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastcomm.bench.cli._NEEDED", ("there_is_no_such_package",))
    words = ["--backends", "gloo", "--ops", "all_reduce", "--sizes", "8", "--iterations", "23"]
    path = tmp_path / "found.jsonl"
    assert main([*words, "--json", str(path)]) == 2
    assert main([*words, "--quiet", "--json", str(path)]) == 0
    assert [row["op"] for row in read_records(path).rows] == ["all_reduce"]
    captured = capsys.readouterr()
    assert "median" not in captured.out and "row/s" not in captured.err
    assert main([*words, "--json", "-"]) == 0  # quiet, since records are printed
    environment, row = map(json.loads, capsys.readouterr().out.splitlines())
    assert environment["type"] == "environment" and row["iterations"] == 25  # of five rounds


@pytest.mark.fresh
def test_rows_may_be_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--backends", "gloo", "--ops", "all_reduce,barrier", "--sizes", "8"]
    path = tmp_path / "rows.jsonl"
    assert main([*words, "--iterations", "5", "--csv", "-"]) == 0
    printed = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["op"], row["bytes"]) for row in printed] == [("all_reduce", "8"), ("barrier", "0")]
    assert float(printed[0]["median_us"]) > 0 and "batch_median_us" not in printed[0]
    assert main([*words, "--iterations", "5", "--quiet", "--json", str(path)]) == 0
    assert main(["--table", str(path), "--ops", "barrier", "--csv", str(tmp_path / "a.csv")]) == 0
    (row,) = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert row["op"] == "barrier"
    with pytest.raises(SystemExit):  # results are never overwritten
        main(["--table", str(path), "--csv", str(tmp_path / "a.csv")])
    assert "never overwritten" in capsys.readouterr().err


def test_a_plot_goes_where_it_is_wanted(
    tmp_path: Path, rows: list[Row], written: Callable[[str, list[Row]], str]
) -> None:
    path = written("rows.jsonl", rows)
    assert main(["--plot", path, "--out", str(tmp_path / "plots")]) == 0
    assert list(tmp_path.rglob("*.png")) == [tmp_path / "plots" / "rows.png"]


def test_a_job_that_runs_is_measured() -> None:
    """Its processes are the ranks, and the first prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    command += ["-m", "fastcomm", "bench", "--ops", "all_reduce", "--backends", "fastcomm,gloo"]
    command += ["--sizes", "64", "--iterations", "5", "--csv", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [(row["backend"], row["ranks"]) for row in rows] == [("fastcomm", "3"), ("gloo", "3")]


def test_other_ranks_than_the_jobs_are_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(line_up, "_REGISTERED", {})
    line_up.register("own", lambda *_: Contender("own", None), start=lambda _: ([], []))
    for words, said in (("--ranks 3", "the job that"), ("--backends own", "ranks of its own")):
        with pytest.raises(SystemExit) as caught:
            main(words.split())
        assert caught.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--device", "cuda"])
    assert caught.value.code == 2 and "no GPU here" in capsys.readouterr().err


def test_a_failing_backend_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backends", "ucc", "--ops", "barrier", "--budget", "1"]) == 1
    assert "rank" in capsys.readouterr().err


def test_a_missing_file_is_status_1(tmp_path: Path) -> None:
    assert main(["--table", str(tmp_path / "none.jsonl")]) == 1


def test_a_part_of_a_file_is_shown(
    rows: list[Row], written: Callable[[str, list[Row]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("rows.jsonl", rows)
    words = ["--table", path, "--summary", "--ops", "all_reduce,barrier", "--sizes", "8"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[2].split()[:3] == ["all_reduce", "8", "B"]

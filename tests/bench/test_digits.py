"""The training script and the demonstration in ``benchmarks/``; ranks have torch loaded."""

import contextlib
import importlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import demo
import digits
import pytest
from support import measured
from support.installed import needs
from support.patience import ENDS

from fastcomm._measure.launch import RankError
from fastcomm.bench.records import read_records

needs("sklearn", "matplotlib")

ROOT = Path(__file__).parents[2]
STEPS = ["--max-steps", "9"]
RECORDS = ["digits-fastcomm.jsonl", "digits-gloo.jsonl"]


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=ENDS,
        check=False,
    )


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a short demonstration leaves."""
    out = tmp_path_factory.mktemp("demo")
    words = ["--sizes", "8,64", "--budget", "0.5", *STEPS, "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        for user in (digits, importlib.import_module("fastcomm.bench.sweep")):
            patch.setattr(user, "launch", measured.launched)
        assert demo.main(words) == 0
    assert "yes  all losses are equal bit for bit (9 steps on 2 ranks)" in said.getvalue()
    (folder,) = out.iterdir()
    return folder


def record_of(path: Path) -> dict[str, Any]:
    (record,) = read_records(path).rows
    return record


def test_the_demo_leaves_records_and_a_plot(demo_folder: Path) -> None:
    assert len(list(demo_folder.glob("bench-*.jsonl"))) == 1
    assert len(list(demo_folder.glob("bench-*.png"))) == 1
    for name in RECORDS:
        assert str(demo_folder) not in (demo_folder / name).read_text()
        record = record_of(demo_folder / name)
        assert [len(losses) for losses in record["losses"]] == [9, 9]
        values = [[float.fromhex(loss) for loss in losses] for losses in record["losses"]]
        assert values[0] != values[1]  # the ranks see different images
        assert record["step_ms"] > 0 and 0 <= record["communication_share"] < 1


def test_the_demo_is_a_script() -> None:
    assert "--sizes" in run("demo.py", "--help").stdout


@pytest.mark.release  # the demo compares two runs as well
def test_every_run_gives_the_same_bits(demo_folder: Path, tmp_path: Path) -> None:
    done = run("digits.py", "--backend", "gloo", *STEPS, "--out", str(tmp_path / "a.jsonl"))
    assert (done.returncode, done.stderr) == (0, "")  # no warnings
    record = record_of(tmp_path / "a.jsonl")
    for other in (record_of(demo_folder / name) for name in RECORDS):
        assert all(other[key] == record[key] for key in ("losses", "weights_sha256"))


def test_a_failing_demo_is_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: object) -> dict[str, Any]:
        raise RankError(1, "planted")

    monkeypatch.setattr(digits, "run", fail)
    monkeypatch.setattr(demo, "bench", lambda words: 0)
    assert demo.main(["--out", str(tmp_path)]) == 1
    assert "FAILED: training over fastcomm" in capsys.readouterr().err


def test_the_demo_sees_one_bit(demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (record_of(demo_folder / RECORDS[0]) for _ in range(2))
    problems = demo.Problems()
    demo.compare(first, second, problems)
    assert not problems.found
    loss = second["losses"][1][4]
    second["losses"][1][4] = loss.replace("p", "1p") if len(loss) < 20 else "0x1.0p+0"
    demo.compare(first, second, problems)
    assert len(problems.found) == 1
    assert "first difference: step 4, rank 1" in capsys.readouterr().out

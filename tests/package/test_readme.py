"""The README's quick start runs, and its table is what the committed measurement says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_quick_start_runs_under_torchrun(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# train\.py.*?)```", README, re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    sums = dict(re.findall(r"rank (\d): (-?\d+\.\d{6})", result.stdout))
    assert len(sums) == 2 and sums["0"] == sums["1"], result.stdout


def test_the_example_of_data_parallel_runs() -> None:
    (code,) = re.findall(r"```python\n(# data_parallel\.py.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    assert all(parameter.grad is not None for parameter in model.parameters())


(MEASURED,) = re.findall(r"<!-- measured:begin -->(.*)<!-- measured:end -->", README, re.DOTALL)
RECORDS = re.findall(r"\]\((benchmarks/results/\S+\.jsonl)\)", MEASURED)


@pytest.mark.parametrize("record", RECORDS)
def test_the_table_is_that_of_the_committed_measurement(record: str) -> None:
    table = subprocess.run(
        [sys.executable, "-m", "fastcomm", "bench", "--table", record, "--style", "github"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) > 3
    assert [row for row in rows if row not in MEASURED.splitlines()] == []

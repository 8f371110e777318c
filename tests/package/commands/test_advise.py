"""``fastcomm advise``: a script that knows nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.interrupts import interruptible
from support.patience import ENDS, has_ended, until

from fastcomm import __main__

SCRIPT = """
import argparse, os, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--epochs", type=int, default=10_000)
options = parser.parse_args()
open(f"{options.folder}/{os.getpid()}", "w")
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(options.epochs):
    for inputs, targets in DataLoader(data, batch_size=8):
        time.sleep(0.004)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    print("epoch", epoch)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "pids").mkdir()
    return tmp_path


def advise(folder: Path, *words: str, status: int = 0) -> tuple[str, str]:
    """Run the command in a folder, to its exit status, and return what it said."""
    command = [sys.executable, "-m", "fastcomm", "advise", *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=ENDS)
    assert ended.returncode == status, ended.stderr
    return ended.stdout, ended.stderr


def test_a_script(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--turns", "2", "--ranks", "2", "--json", "advice.json", "--plot", "advice.png"]
    said, _ = advise(folder, *options, "train.py", "pids", "--epochs", "5000")
    assert "epoch" not in said
    found = json.loads((folder / "advice.json").read_text())
    assert said.splitlines()[-1] == found["sentence"]
    rows = [(row["way"], row["devices"], row["rows"]) for row in found["predictions"]]
    assert rows == [
        ("one process", 1, 8),
        ("DDP", 2, 16),
        ("DDP, batch divided", 2, 8),
        ("DataParallel", 2, 8),
    ]
    assert found["predictions"][0]["parts"]["loading"] > 0.004
    assert (folder / "advice.png").read_bytes().startswith(b"\x89PNG")
    # One process, with its batch divided, two crews of ranks, and one with replicas.
    pids = [int(path.name) for path in (folder / "pids").iterdir()]
    assert len(pids) == 7 and all(map(has_ended, pids))


def test_scripts_without_advice(folder: Path) -> None:
    (folder / "nothing.py").write_text("print('no training')")
    for words, said in (
        (("train.py",), "the following arguments are required: folder"),
        (("train.py", "pids", "--epochs", "1"), "the training ended by itself after 8 steps"),
        (("nothing.py",), "the script has no training loop"),
    ):
        out, error = advise(folder, *words, status=1)
        assert out == "" and said in error, error


def test_command_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["missing.py"], "there is no file missing.py"),
        ([], "there is no script to run"),
        (["--turns", "1", str(folder / "train.py")], "a whole number, 2 or more"),
        (["--ranks", "2,x", "train.py"], "a number of ranks from 2 to"),
        (["--links", "0", "train.py"], "Gbit/s above 0, not"),
    ):
        try:
            status = __main__.main(["advise", *words])
        except SystemExit as end:
            status = int(end.code or 0)
        assert status == 2 and said in capsys.readouterr().err, words


def test_an_interrupt_leaves_nothing(folder: Path) -> None:
    command = [sys.executable, "-m", "fastcomm", "advise", "train.py", "pids"]
    with interruptible():
        running = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    pids = folder / "pids"
    until(lambda: len(list(pids.iterdir())) >= 3, "some workers train")
    os.kill(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=ENDS)
    assert running.returncode == 130 and "Traceback" not in said
    assert all(has_ended(int(path.name)) for path in pids.iterdir())

"""Training loops of models and scripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fastcomm._advise.loop import Enough, Loop, Parts
from fastcomm._advise.sources import OfModel, OfScript, ScriptError
from fastcomm._advise.told import Spec
from fastcomm._advise.work import Work
from fastcomm._launch import pickles

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    print("not shown")
    loader = DataLoader(TensorDataset(torch.ones(24, 2)), int(sys.argv[1]), shuffle=True)
    whole = DataLoader(TensorDataset(torch.ones(24, 2)), batch_size=None)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in loader:
        model(batch).sum().backward()
        optimizer.step()
    assert whole.batch_size is None
    sys.stderr.write("the last line\\n")
    sys.exit(int(sys.argv[2]))
"""


def _rows(source: OfModel | OfScript, spec: Spec, most: int = 3) -> list[int]:
    """Return the rows of the batches that the model sees in some steps."""
    rows: list[int] = []

    def found(model: nn.Module, _: torch.optim.Optimizer) -> None:
        model.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[0]))

    def stepped(_: Parts) -> None:
        if len(rows) == most:
            raise Enough

    try:
        with Loop(found, stepped):
            source(spec)
    except Enough:
        pass
    return rows


def test_a_model() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout()).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = Work(model, torch.ones(12, 2), torch.sum, optimizer)
    source = OfModel(pickles.save(work))
    before = [p.clone() for p in model.parameters()]
    assert _rows(source, Spec()) == [12] * 3
    assert _rows(source, Spec(ranks=2, divisor=4)) == [3] * 3
    assert all(map(torch.equal, before, model.parameters()))  # a copy was trained


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert _rows(OfScript((script, "8", "0"), False), Spec()) == [8, 8]  # the first finds it
    assert _rows(OfScript((script, "8", "0"), False), Spec(divisor=2)) == [4] * 3
    assert DataLoader(TensorDataset(torch.ones(4)), 4).batch_size == 4
    os.write(1, b"shown again")
    assert capfd.readouterr() == ("shown again", "")


def test_a_script_that_fails(script: str) -> None:
    with pytest.raises(ScriptError, match=r"the last line\nIt ended with status 3"):
        OfScript((script, "8", "3"), False)(Spec())
    with pytest.raises(ValueError, match="invalid literal"):
        OfScript((script, "many", "3"), False)(Spec())

"""``fastcomm tune``, and the use of its values in process groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.patience import ENDS

from fastcomm.__main__ import main
from fastcomm._machine import tuning as _tuning


def _explained(folder: Path, **settings: str) -> str:
    environment = {**os.environ, "FASTCOMM_TUNING": "", "XDG_CACHE_HOME": str(folder), **settings}
    command = [sys.executable, "-m", "fastcomm", "explain", "all_reduce", "--size", "4K"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=ENDS)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_is_measured_is_kept_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _tuning.write({5: {"payload_bytes": 4096}, 2: {"block_bytes": 1 << 20}})
    file = tmp_path / "new" / "tune.json"
    words = ["--ranks", "2", "--devices", "--budget", "0.5", "--json", str(file)]
    assert main(["tune", *words]) == 0
    out = capsys.readouterr().out
    assert "one-shot limit" in out and "block" in out and out.count("chosen") == 2, out
    report = json.loads(file.read_text())
    assert len(report["rows"]) == 10 and report["environment"]  # 6 candidates and 4
    kept = _tuning.read()
    assert kept.pop(5) == {"payload_bytes": 4096}  # of a number of ranks that was not measured
    measured = {int(ranks): values for ranks, values in report["values"].items() if values}
    assert kept == measured


@pytest.mark.fresh
def test_nothing_is_kept_by_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["--ranks", "2", "--devices", "--budget", "0.2", "--quiet", "--dry-run"]
    assert main(["tune", *words]) == 0
    assert not _tuning.file().exists()


def test_groups_go_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Values that their setting does not allow are reported, and left out.
    _tuning.write({2: {"payload_bytes": 8192}, 3: {"payload_bytes": 3}})
    said = _explained(tmp_path)
    assert "limit of 8192 (tuned for this number of ranks)" in said, said
    assert "values for 3 ranks: payload_bytes is 3: must be 0 or from 64 to" in said, said
    said = _explained(tmp_path, FASTCOMM_TUNING="off", FASTCOMM_ONE_SHOT_BYTES="16384")
    assert "limit of 16384 (FASTCOMM_ONE_SHOT_BYTES)" in said and "ranks: " not in said, said
    assert main(["tune", "--forget"]) == 0
    assert _tuning.read() == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are devices here")
def test_devices_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--quiet", "--dry-run", "--ranks", "--devices", "2"]) == 2
    assert capsys.readouterr().err == "tune: --devices: torch finds none here\n"

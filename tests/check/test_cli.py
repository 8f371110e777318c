"""``python -m fastcomm check``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fastcomm.__main__ import main


def test_a_machine_without_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = {"--json": tmp_path / "check.json", "--plot": tmp_path / "check.png"}
    wanted = [word for name, file in files.items() for word in (name, str(file))]
    assert main(["check", "--no-devices", "--budget", "0.2", *wanted]) == 0
    text = capsys.readouterr().out
    assert "memfd" in text and "posix" in text, text
    assert len(re.findall(r"(\d+) of \1\b", text)) == 3, text
    found = json.loads(files["--json"].read_text())
    assert {row["verdict"] for row in found["rows"]} == {"ok"}
    speeds = [row for row in found["rows"] if row["check"] == "speed"]
    assert [list(row["beside"]) for row in speeds] == [[]] * 2 + [["gloo"]] * 4
    assert files["--plot"].stat().st_size > 10_000
    assert not (tmp_path / "fastcomm").exists()  # nothing to go around


@pytest.mark.parametrize("arguments", [["--ranks", "1"], ["--devices", "x"], ["--speed"]])
def test_arguments_that_cannot_be_meant(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err

"""What identifies a machine, and what is kept about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastcomm._machine import identity as _machine

CARD = """Model: \t\t NVIDIA X
IRQ:   \t\t {irq}
GPU UUID: \t {uuid}
Bus Location: \t 0000:0{bus}:00.0
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a driver with two GPUs."""
    (tmp_path / "version").write_text("NVRM version: 1.2")
    monkeypatch.setattr(_machine, "DRIVER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for bus in (1, 2):
        _card(tmp_path, bus)
    return tmp_path


def _card(driver: Path, bus: int, irq: str = "17", uuid: str = "GPU-1") -> None:
    folder = driver / "gpus" / f"0000:0{bus}:00.0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "information").write_text(CARD.format(irq=irq, uuid=uuid, bus=bus))


def test_a_machine_is_the_same_whoever_uses_it(driver: Path) -> None:
    before = _machine.identity()
    assert len(_machine.gpus()) == 2 and "Model" in _machine.gpus()[0]
    _card(driver, 2, irq="-1", uuid="GPU-????????")
    assert _machine.identity() == before
    _card(driver, 3)
    assert _machine.identity() != before


@pytest.mark.parametrize("what", ["driver", "torch", "code", "id"])
def test_what_makes_it_another_one(
    driver: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _machine.identity()
    if what == "driver":
        (driver / "version").write_text("NVRM version: 1.3")
    elif what == "torch":
        monkeypatch.setattr("torch.__version__", "0.0")
    elif what == "code":
        monkeypatch.setattr("fastcomm._build_info.SOURCES", "other")
    else:
        (driver / "id").write_text("0123")
        monkeypatch.setattr(_machine, "_ID", driver / "id")
    assert _machine.identity() != before


@pytest.mark.usefixtures("driver")
def test_what_is_kept_is_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine.write("a.json", {})
    assert not _machine.file("a.json").exists()
    _machine.write("a.json", {"x": 1})
    monkeypatch.setattr("torch.__version__", "0.0")
    assert _machine.read("a.json") == {}
    _machine.write("a.json", {"x": 2})
    assert _machine.read("a.json") == {"x": 2}
    monkeypatch.undo()


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        _machine.write_whole(tmp_path / "folder", "text")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        _machine.write_whole(tmp_path / "file", "\udc80")
    assert os.listdir(tmp_path) == []


def test_a_file_has_the_mode_of_other_new_files(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    _machine.write_whole(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode

"""Settings come from one table: what is parsed, what ``fastcomm env`` shows, docs/settings.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from support.patience import ENDS
from support.ranks import World, run_ranks

from fastcomm import _native, _settings
from fastcomm._commands import env

ROOT = Path(__file__).resolve().parents[2]
# Of the tests' own programs, and of runs that fastcomm starts.
_OTHERS = {"FASTCOMM_RUN", "FASTCOMM_VERSION", "FASTCOMM_XY"}


def test_values_in_force_are_those_of_the_table() -> None:
    assert list(_native.load().environment()) == _settings.names()
    assert len(set(_settings.names())) == len(_settings.names()) > 15


def test_nothing_else_is_read() -> None:
    known = {*_settings.names(), *_settings.BUILD}
    found = set()
    for path in [*(ROOT / "csrc").rglob("*"), *(ROOT / "fastcomm").rglob("*.py")]:
        if path.suffix in (".h", ".cpp", ".cu", ".py"):
            found |= set(re.findall(r"\"(FASTCOMM_[A-Z_]+)\"", path.read_text()))
    assert found - _OTHERS <= known and set(_settings.names()) <= found


def _in_force(chosen: dict[str, str]) -> dict[str, object]:
    script = "import json, fastcomm._native as n; print(json.dumps(n.load().environment()))"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTCOMM_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**kept, "FASTCOMM_VERDICTS": "off", **chosen},
        capture_output=True,
        text=True,
        timeout=ENDS,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_defaults_and_the_ends_of_every_range() -> None:
    """Numbers at their least and most, words each at their last."""
    rows = _native.load().settings()
    defaults = {name: default for name, default, *_ in rows} | {"FASTCOMM_VERDICTS": "off"}
    for chosen in ({}, defaults):  # those that are set may be out of the range
        assert {name: f"{value:g}" if isinstance(value, float) else str(value)
                for name, value in _in_force(chosen).items()} == defaults  # fmt: skip
    ends = {}
    for name, _, may, _ in rows:
        if numbers := re.fullmatch(r".* from (-?\d+) to (\d+)", may):
            ends[name] = numbers.groups()
        else:
            words = may.removeprefix("one of ").split(", ")
            ends[name] = (words[0], words[-1])
    for end in (0, 1):
        chosen = {name: values[end] for name, values in ends.items()}
        chosen["FASTCOMM_VERDICTS"] = "off"
        found = _in_force(chosen)
        assert {name: f"{value:.0f}" if isinstance(value, float) else str(value)
                for name, value in found.items()} == chosen  # fmt: skip


def test_sizes_are_rounded_down() -> None:
    found = _in_force({"FASTCOMM_ONE_SHOT_BYTES": "1000", "FASTCOMM_BLOCK_BYTES": "10000"})
    assert (found["FASTCOMM_ONE_SHOT_BYTES"], found["FASTCOMM_BLOCK_BYTES"]) == (960, 8192)


def test_a_setting_that_nothing_reads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCOMM_TRANSPROT", "posix")
    monkeypatch.setenv("FASTCOMM_CUDA", "0")  # the build reads it
    monkeypatch.setenv("FASTCOMM_ISA", "auto")
    _settings.warn_of_unknown.cache_clear()
    with pytest.warns(RuntimeWarning) as told:
        _settings.warn_of_unknown()
    assert [str(warning.message) for warning in told] == [
        "FASTCOMM_TRANSPROT is set, and fastcomm has no such setting: did you mean "
        "FASTCOMM_TRANSPORT? 'fastcomm env --settings' lists them"
    ]
    _settings.warn_of_unknown()  # once per process: a warning fails here


def _create(world: World) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        world.init()
    return [str(warning.message) for warning in told if warning.category is RuntimeWarning]


def test_a_group_says_so_when_it_is_created() -> None:
    for told in run_ranks(2, _create, environment={"FASTCOMM_RUOTE": "fastest"}):
        assert any("FASTCOMM_RUOTE is set" in text for text in told), told


def test_the_list_for_readers(capsys: pytest.CaptureFixture[str]) -> None:
    assert env.main(["--settings"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name} (" in printed for name in _settings.names())
    assert env.main(["--settings", "--style", "github"]) == 0
    page = (ROOT / "docs" / "settings.md").read_text()
    assert capsys.readouterr().out in page

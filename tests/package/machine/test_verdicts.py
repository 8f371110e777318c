"""What a check has found wrong is obeyed by process groups, until the machine changes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks

import fastcomm
from fastcomm._machine import identity as _machine
from fastcomm._machine import verdicts as _verdicts


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where verdicts are, while this process has no settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("FASTCOMM_")]:
        monkeypatch.delenv(name)
    return tmp_path / "fastcomm" / "verdicts.json"


def _obeyed() -> dict[str, str]:
    """Return what obey() sets, and undo it."""
    before = set(os.environ)
    _verdicts.obey()
    return {name: os.environ.pop(name) for name in set(os.environ) - before}


def test_what_is_written_is_obeyed_on_this_machine(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert _obeyed() == {}
    _verdicts.write({"FASTCOMM_IPC": "descriptor"})
    with caplog.at_level(logging.WARNING):
        assert _obeyed() == {"FASTCOMM_IPC": "descriptor"}
    assert "FASTCOMM_IPC=descriptor" in caplog.text and str(cache) in caplog.text
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert _obeyed() == {}
    _verdicts.write({"FASTCOMM_ROUTE": "pinned"})
    assert len(json.loads(cache.read_text())) == 2


@pytest.mark.usefixtures("cache")
def test_who_has_set_a_variable_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _verdicts.write({"FASTCOMM_IPC": "descriptor"})
    monkeypatch.setenv("FASTCOMM_IPC", "fabric")
    assert _obeyed() == {}
    monkeypatch.delenv("FASTCOMM_IPC")
    monkeypatch.setenv("FASTCOMM_VERDICTS", "off")
    assert _obeyed() == {}


@pytest.mark.usefixtures("cache")
def test_what_was_not_decided_anew_stays() -> None:
    _verdicts.write({"FASTCOMM_IPC": "descriptor", "FASTCOMM_TRANSPORT": "posix"})
    _verdicts.write({}, decided={"FASTCOMM_TRANSPORT"})
    assert _verdicts.read() == {"FASTCOMM_IPC": "descriptor"}
    _verdicts.write({"FASTCOMM_IPC": "fabric"}, decided=set())
    assert _verdicts.read() == {"FASTCOMM_IPC": "fabric"}


def test_a_check_that_finds_nothing_wrong_takes_it_back(cache: Path) -> None:
    _verdicts.write({})
    assert not cache.exists()
    _verdicts.write({"FASTCOMM_IPC": "descriptor"})
    _verdicts.write({})
    assert json.loads(cache.read_text()) == {} and _obeyed() == {}


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"%s": 3}', '{"%s": {"PATH": "x"}}'])
def test_a_file_that_is_something_else_is_not_obeyed(text: str, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(text.replace("%s", _machine.identity()))
    assert _obeyed() == {}
    _verdicts.write({"FASTCOMM_IPC": "handle"})
    assert _obeyed() == {"FASTCOMM_IPC": "handle"}


def _reason(world: World) -> str:
    world.init()
    return fastcomm.explain("all_reduce", torch.ones(1), group=dist.group.WORLD).reason


def test_groups_obey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process's own variables stay: it may fork the server from which all later ranks get
    # theirs.
    path = tmp_path / "fastcomm" / "verdicts.json"
    monkeypatch.setattr(_machine, "file", lambda name: path)
    _verdicts.write({"FASTCOMM_TRANSPORT": "gloo"})
    environment = {"XDG_CACHE_HOME": str(tmp_path), "FASTCOMM_VERDICTS": ""}
    reasons = run_ranks(2, _reason, environment=environment)
    assert all("FASTCOMM_TRANSPORT=gloo" in reason for reason in reasons), reasons

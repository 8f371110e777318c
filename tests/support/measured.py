"""Ranks of measurements and checks from the tests' fork server, which has torch loaded.

They are as those that `fastcomm._measure.launch` starts by itself, except that these need not
import torch, which takes longer than most of what they are started for.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from support import ranks

from fastcomm._launch.function import end_process
from fastcomm._measure.launch import Process, launch
from fastcomm._measure.rank import Rank, run_function

ranks.preload("fastcomm.bench.sweep", "fastcomm.check.ranks", "fastcomm.tune.ranks")


def start(size: int) -> tuple[list[Process], list[Connection]]:
    """Start so many ranks, as `fastcomm._measure.launch.Start` says."""
    environment = dict(os.environ)
    started: list[Any] = [ranks.RankProcess(_run, environment) for _ in range(size)]
    return [each.process for each in started], [each.pipe for each in started]


def _run(pipe: Connection, environment: dict[str, str]) -> None:
    # The fork server's is that of the test that came first.
    os.environ.clear()
    os.environ.update(environment)
    function, settings, arguments = pipe.recv()
    rank = Rank(int(settings["RANK"]), int(settings["WORLD_SIZE"]), pipe)
    run_function(function, rank, settings, arguments)
    end_process()


@functools.wraps(launch)
def launched(*arguments: Any, **options: Any) -> list[Any]:
    """Launch, with these ranks where it does not matter which."""
    return launch(*arguments, **{**options, "start": options.get("start") or start})


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let these be the ranks of all sweeps, checks and tunings, but of tests marked `fresh`."""
    if request.node.get_closest_marker("fresh") is None:
        for user in ("bench.sweep", "check.run", "tune.run"):
            monkeypatch.setattr(importlib.import_module(f"fastcomm.{user}"), "launch", launched)
    yield

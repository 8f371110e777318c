"""Building beside tests (tests/support/beside.py) holds their turn, and ends with them."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest
from support import beside, programs
from support.patience import until

FILE = "tests/coll/test_list_plan.py"


def _is_free(lock: Path) -> bool:
    with lock.open("r+") as turns:
        try:
            fcntl.lockf(turns, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_serial_test_waits_for_it_and_it_ends_with_the_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock, begun = tmp_path / "lock", tmp_path / "begun"
    lock.touch()
    compiler = tmp_path / f"compiler-{tmp_path.name}"
    compiler.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 250\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(beside, "LOG", tmp_path / "log")
    try:
        with beside.building(str(lock), False, [FILE]):
            assert not _is_free(lock)
            until(begun.exists, f"a compiler: {beside.LOG}")
            assert not _is_free(lock)
        assert _is_free(lock)
    finally:
        shutil.rmtree(programs.folder(), ignore_errors=True)


def test_what_does_not_compile_keeps_nothing_else_from_being_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[object] = []

    def make(wanted: object, *, quiet: bool) -> None:
        built.append(wanted)
        raise RuntimeError("does not compile")

    lock = tmp_path / "lock"
    lock.touch()
    monkeypatch.setattr(programs, "make", make)
    monkeypatch.setattr(beside.os, "dup2", lambda *_: None)
    beside.main(str(lock), FILE, "tests/core/test_host_cache.py")
    assert built == [
        programs.needed(["coll/test_list_plan.py"]),
        programs.needed(["core/test_host_cache.py"]),
    ]

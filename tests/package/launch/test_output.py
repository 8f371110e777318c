"""Lines of ranks on their way to the stream of a notebook."""

from __future__ import annotations

import io
import os
import sys
import tempfile

import pytest

from fastcomm._launch import output


def test_whole_lines_go_on_and_the_rest_waits() -> None:
    target = io.StringIO()
    stream = output.Output(target)
    steps = [("a\nb", "a\n"), ("c\n", "a\nbc\n"), ("50 %\r", "a\nbc\n50 %\r")]
    for given, seen in steps:
        os.write(stream.inner, given.encode())
        stream.forward()
        assert target.getvalue() == seen
    os.write(stream.inner, "ü".encode()[:1])
    stream.forward()
    os.write(stream.inner, "ü".encode()[1:])
    os.close(stream.inner)
    stream.forward()
    assert target.getvalue().endswith("\rü\n") and not stream.is_open


def test_a_pipe_that_a_child_holds_open_is_closed() -> None:
    target = io.StringIO()
    stream = output.Output(target)
    os.write(stream.inner, b"left")
    stream.forward()
    stream.close()
    stream.close()
    assert target.getvalue() == "left\n" and not stream.is_open
    os.close(stream.inner)


def test_a_closed_target_is_no_error() -> None:
    target = io.StringIO()
    target.close()
    stream = output.Output(target)
    os.write(stream.inner, b"lost\n")
    stream.forward()
    stream.close()
    os.close(stream.inner)


def test_which_streams_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = io.StringIO()
    monkeypatch.setattr(sys, "stdout", replaced)
    assert output.target("stdout", 1) is replaced
    with tempfile.TemporaryFile("w") as file:  # what pytest and ipykernel put there
        monkeypatch.setattr(sys, "stdout", file)
        assert output.target("stdout", 1) is file
        assert output.target("stdout", file.fileno()) is None
    monkeypatch.setattr(sys, "stdout", None)
    assert output.target("stdout", 1) is None

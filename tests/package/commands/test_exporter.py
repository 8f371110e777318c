"""Where a text for Prometheus goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastcomm._commands.exporter import address, write


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        (":9400", ("127.0.0.1", 9400)),
        ("host.name:1", ("host.name", 1)),
        ("70000", None),
        ("ranks.prom", None),
        ("./9400", None),
        ("/tmp/a:1", None),
    ],
)
def test_what_is_an_address(text: str, where: tuple[str, int] | None) -> None:
    assert address(text) == where


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ranks.prom"
    write(str(path), "one\n")
    with path.open() as old:
        write(str(path), "two\n")
        assert (old.read(), path.read_text()) == ("one\n", "two\n")
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write(str(tmp_path / "folder"), "text")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]

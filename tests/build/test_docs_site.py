"""The site: what it makes of links and docstrings, its versions, links that lead nowhere."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import docs_site
import pytest


@pytest.fixture(scope="module")
def conf(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "docs" / "conf.py"))


def _write(folder: Path, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    links = ["b/c.html", "b/c.html#here", "b/c.html#there", "#top", "#bottom", "d.html"]
    links += ["https://pytorch.org/d.html", "b%20c.txt"]
    text = "<h1 id='top'></h1>" + "".join(f'<a href="{link}">x</a>' for link in links)
    _write(tmp_path, {"a.html": text, "b/c.html": "<p id='here'><img src='../d.png'>"})
    _write(tmp_path, {"b c.txt": "", "_static/macros.html": '<a href="{{ made }}"></a>'})
    assert list(docs_site.broken_links(tmp_path)) == [
        "a.html: b/c.html#there: no such place",
        "a.html: #bottom: no such place",
        "a.html: d.html: no such file",
        "b/c.html: ../d.png: no such file",
    ]


def test_versions_are_listed_the_newest_first(tmp_path: Path) -> None:
    _write(tmp_path, {f"{name}/objects.inv": "" for name in ("0.9.0", "0.10.0", "0.10.0rc1")})
    _write(tmp_path, {"other/index.html": ""})
    docs_site.write_versions(tmp_path, "/docs/")
    menu = json.loads((tmp_path / "versions.json").read_text())
    assert [each["version"] for each in menu] == ["0.10.0", "0.10.0rc1", "0.9.0"]
    assert menu[0]["url"] == "/docs/0.10.0/"
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("page", "written_in", "link", "shown"),
    [
        ("frameworks/hosts", "docs/frameworks", "../errors.md#names", "../errors.md#names"),
        ("limits", "docs", "../csrc/README.md#rooms", "project/csrc.md#rooms"),
        ("frameworks/hosts", "docs/frameworks", "../examples/hosts.py", "../gallery.md#hostspy"),
        ("limits", "docs", "adr/", "adr/README.md"),
        ("project/csrc", "csrc", "../docs/errors.md", "../errors.md"),
        ("project/csrc", "csrc", "../CONTRIBUTING.md", "contributing.md"),
        ("project/readme", "", "setup.py", "../../setup.py"),
        ("project/readme", "", "https://pytorch.org/docs", "https://pytorch.org/docs"),
        ("project/readme", "", "argument", "argument"),
    ],
)
def test_links_lead_to_pages_of_the_site(
    conf: dict[str, Any], page: str, written_in: str, link: str, shown: str
) -> None:
    assert conf["_links_of_the_site"](page, f"[a]({link})", written_in) == f"[a]({shown})"


def test_pages_that_stand_for_others_are_there(conf: dict[str, Any], root: Path) -> None:
    for path, shown in conf["SHOWN_AS"].items():
        assert (root / path).is_file() and (root / "docs" / shown).is_file()


def test_code_in_docstrings_is_marked(conf: dict[str, Any]) -> None:
    lines = ["A sum.", "", "    first()", "", "    second()", "", "Args:", "    x: one.", ""]
    lines += ["    y: two.", "Text."]
    conf["_mark_code"](None, "function", "f", None, None, lines)
    assert lines[:8] == ["A sum.", "", "::", "", "    first()", "", "    second()", ""]
    assert lines[8:] == ["Args:", "    x: one.", "", "    y: two.", "Text."]

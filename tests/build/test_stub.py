"""The hand-written stubs have exactly the public names of what they describe."""

from __future__ import annotations

import ast
from pathlib import Path


def stub_names(text: str) -> set[str]:
    """Return the public names that a stub defines at its top level, without imports."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def test_stub_equals_library(root: Path) -> None:
    stub = root / "fastcomm" / "_C.pyi"
    from fastcomm import _native

    library = _native.load()
    public = {name for name in dir(library) if not name.startswith("_")}
    assert stub_names(stub.read_text()) == public


def test_reader_of_stubs() -> None:
    text = "import x\nfrom y import z\n_B: int\nA: int\ndef f() -> None: ...\nclass C:\n    m: int"
    assert stub_names(text) == {"A", "f", "C"}


def test_the_stub_of_the_build_record_names_what_a_build_writes(root: Path) -> None:
    from fastcomm import _build_info

    stub = (root / "fastcomm" / "_build_info.pyi").read_text()
    assert stub_names(stub) == {name for name in vars(_build_info) if name.isupper()}

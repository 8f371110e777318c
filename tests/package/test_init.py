"""What ``import fastcomm`` alone makes known."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastcomm

ROOT = Path(__file__).resolve().parents[2]


def in_a_fresh_interpreter(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


MODULES = ("amp", "comm", "ddp_comm_hooks", "errors", "nn", "nn.parallel", "optim")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_needs_no_import_of_its_own(module: str) -> None:
    in_a_fresh_interpreter(f"import fastcomm; assert fastcomm.{module}.__all__")


def test_the_page_of_public_names_is_complete() -> None:
    names = [f"fastcomm.{name}" for name in fastcomm.__all__]
    for module in MODULES:
        public = importlib.import_module(f"fastcomm.{module}").__all__
        names += [f"fastcomm.{module}.{name}" for name in public if module != "errors"]
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^\| `(fastcomm\.\S+)`", page, re.MULTILINE)
    assert sorted(shown) == sorted({*names} - {"fastcomm.__version__", "fastcomm.nn.parallel"})


def test_every_exception_is_exported() -> None:
    from fastcomm import errors

    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FastcommError)
    }
    assert len(defined) == 10
    assert defined <= set(fastcomm.__all__)
    assert all(getattr(fastcomm, name) is getattr(errors, name) for name in defined)


def test_the_lists_of_names_agree() -> None:
    """What type checkers read, what is looked up, and what is promised."""
    tree = ast.parse((ROOT / "fastcomm" / "__init__.py").read_text())
    seen = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fastcomm.")
        for alias in node.names
    }
    assert seen == {*fastcomm._MODULE_OF, "__version__"} == set(fastcomm.__all__)

"""What ``import fastcomm`` alone makes known."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import fastcomm

ROOT = Path(__file__).resolve().parents[2]


MODULES = ("amp", "comm", "ddp_comm_hooks", "distributed", "errors", "nn", "nn.parallel", "optim")


# A child for each module, since one may import another.
EACH_ALONE = """
import os, sys, torch, fastcomm
for module in sys.argv[1:]:
    assert f"fastcomm.{module}" not in sys.modules
    if (child := os.fork()) == 0:
        assert eval(f"fastcomm.{module}.__all__")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, module
"""


def test_a_module_needs_no_import_of_its_own() -> None:
    words = [sys.executable, "-c", EACH_ALONE, *MODULES]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_page_of_public_names_is_complete() -> None:
    names = [f"fastcomm.{name}" for name in fastcomm.__all__]
    for module in MODULES:
        public = importlib.import_module(f"fastcomm.{module}").__all__
        names += [f"fastcomm.{module}.{name}" for name in public if module != "errors"]
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"`(fastcomm\.[\w.]+)`", page)
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

"""Modules that a file of tests needs and does not import: every worker imports every file."""

from __future__ import annotations

import importlib.util

import pytest


def needs(*modules: str) -> None:
    """Skip the file that calls this unless all modules are installed; import none of them."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"could not find {name!r}", allow_module_level=True)

"""A script, or a module, run in this process as ``python`` would."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence


def run_script(words: Sequence[str], as_module: bool) -> None:
    """Run it to its end.

    Args:
        words: its path, or its name if it is a module, and its arguments.
        as_module: as by ``python -m``.
    """
    sys.argv = list(words)
    if as_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")

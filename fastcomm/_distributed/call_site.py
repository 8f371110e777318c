"""The line at which a program makes a call, for the messages of ``FASTCOMM_CALL_SITES``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

_LIBRARIES = ("<frozen ", *(f"{path}/" for path in (*torch.__path__, Path(__file__).parents[1])))


def call_site() -> str:
    """Return file and line of the innermost frame outside torch and fastcomm, or "".

    The library calls it, in the thread that makes the call.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""

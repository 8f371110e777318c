"""A process with its own process numbers, as in another container. Needs root."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

_CLONE_NEWPID = 0x20000000


def why_no_pids() -> str | None:
    """Say why this process may not make a PID namespace; None if it may."""
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is missing"
    tried = subprocess.run(["unshare", "-p", "-f", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no PID namespaces: {tried.stderr.strip()}"


def fork_apart(play: Callable[[], Any], end: Callable[[int], None] | None) -> Any:
    """Fork a child into a new PID namespace and return what ``play`` returns there.

    With ``end``, call that with the child's process number and return None.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWPID)")
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sender, pickle.dumps(play()))
        finally:
            os._exit(0)
    os.close(sender)
    if end is not None:
        end(child)
    with os.fdopen(receiver, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if end is None else None

"""A private /dev/shm: small, or none. Needs root and ``unshare`` (util-linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator

_CLONE_NEWNS = 0x00020000
# What stands at /dev/shm in the new namespace.
SMALL = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
NONE = "mount -t tmpfs -o size=4k,ro tmpfs /dev/shm"


def why_no_mounts() -> str | None:
    """Say why this process may not have mounts of its own; None if it may."""
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is missing"
    tried = subprocess.run(["unshare", "-m", "sh", "-c", SMALL], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no mounts of one's own: {tried.stderr.strip()}"


@contextlib.contextmanager
def shared_memory_folder(command: str) -> Iterator[str]:
    """Yield the name of a mount namespace for `enter`, in which ``command`` has made /dev/shm."""
    script = f"{command} && echo ready && exec sleep 600"
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout and holder.stdout.readline() == "ready\n", "no mounts"
        yield f"/proc/{holder.pid}/ns/mnt"
    finally:
        holder.kill()
        holder.wait()


def enter(namespace: str) -> None:
    """Let this process see the namespace's mounts; it may have one thread only."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.getcwd()
    with open(namespace) as handle:
        if libc.setns(handle.fileno(), _CLONE_NEWNS) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"setns: {os.strerror(error)}")
    os.chdir(folder)

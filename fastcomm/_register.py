"""Make the name "fastcomm" known to torch.distributed, and do nothing else.

torch calls :func:`autoload` through the entry point ``torch.backends`` before its own import has
finished, in every program of the environment, whether the program uses fastcomm or not. So this
module imports nothing heavy, loads no native code, and never lets an exception reach
``import torch``. The backend itself is imported when the first group is created.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Backend as C10dBackend

NAME = "fastcomm"
# A list: torch would walk through a string letter by letter. Listing the devices does not make
# fastcomm their default backend; Gloo and NCCL keep that place.
DEVICES = ["cpu", "cuda"]
# Set by ``fastcomm run`` for the processes that its script starts through multiprocessing, and as
# ranks that run the script again: its absolute path, or -m and its module's name.
RUN = "_FASTCOMM_RUN"
READERS = ("top", "trace")  # commands that only read what ranks have written


def name_on(device_type: str) -> str:
    """Return the backend's name for creating a group whose tensors lie on such devices."""
    # A name with colons has no default backend in torch, which warns of that when the group ends.
    return NAME if device_type in DEVICES else f"cpu:{NAME},{device_type}:{NAME}"


def autoload() -> None:
    """Register the backend; harmless when repeated, and a warning at worst.

    Works in both import orders. Where ``import fastcomm`` comes first, torch is imported here,
    torch calls this function again from within, and the outer call finds the work done. For a
    command that only reads, torch, whose import takes more than a second, is not imported.
    """
    if "torch" not in sys.modules and _only_reads():
        return
    try:
        register()
    except Exception as error:
        _warn(f"fastcomm could not register itself with torch.distributed: {error!r}")
    if RUN in os.environ and _is_a_worker():
        try:
            _follow()
        except Exception as error:
            _warn(f"this worker of a 'fastcomm run' runs on plain torch: {error!r}")


def _only_reads() -> bool:
    """Tell whether this program is a command of fastcomm that needs no torch."""
    words: list[str] = getattr(sys, "argv", [])  # none yet in some programs that embed Python
    name, command, *_ = [*words, "", ""]
    is_module = name == "-m" and ("-m", "fastcomm") in itertools.pairwise(sys.orig_argv)
    return command in READERS and (is_module or os.path.basename(name) == "fastcomm")


def _is_a_worker() -> bool:
    """Tell whether a script of ``fastcomm run`` has started this program as a worker or a rank.

    Workers are what multiprocessing starts, by spawn or as its fork server. Ranks are the same
    script or module, with LOCAL_RANK, which Lightning starts so.
    """
    server = "from multiprocessing.forkserver import main"
    words = sys.orig_argv
    if "--multiprocessing-fork" in words or any(word.startswith(server) for word in words):
        return True
    if "LOCAL_RANK" not in os.environ:
        return False
    flag, _, module = os.environ[RUN].partition(" ")
    if flag == "-m":
        return any(pair == ("-m", module) for pair in itertools.pairwise(words))
    return any(os.path.abspath(word) == os.environ[RUN] for word in words[1:])


def _follow() -> None:
    """Do in a worker what ``fastcomm run`` has done in its parent, once."""
    script = os.environ.pop(
        RUN
    )  # before torch calls again from within; workers' children find it anew
    try:
        from fastcomm._take_over import take_over

        take_over()
    finally:
        os.environ[RUN] = script


def register() -> None:
    """Register the backend; harmless when repeated.

    torch calls this through the entry point ``torch.distributed.backends`` where a program first
    uses the name. Raises what the import of ``torch.distributed`` raises.
    """
    try:
        import torch.distributed
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return  # Without torch there is nothing to register with, and nothing to warn of.
        raise
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import Backend

    if NAME not in Backend.backend_list:
        Backend.register_backend(NAME, _create_backend, extended_api=True, devices=DEVICES)


def _create_backend(options: object, backend_options: object) -> C10dBackend:
    """Build the backend of one process group; torch calls this on every member.

    Args:
        options: torch's ``_DistributedBackendOptions`` (store, rank, size, timeout, group name).
        backend_options: what the user gave as ``pg_options``, None by default.
    """
    from fastcomm._distributed.backend import create

    return create(options, backend_options)


def _warn(message: str) -> None:
    """Warn, even where the user turns warnings into errors: torch must still import."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(f"warning: {message}", file=sys.stderr)

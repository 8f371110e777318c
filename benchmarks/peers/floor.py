"""What bare processes need: ``floor.cpp``, compiled here and called without torch in between.

It has fp32 sums on the CPU of all_reduce and reduce_scatter_tensor, all_gather_into_tensor and
broadcast, for up to 16 ranks. ``single-copy`` is the same program where ranks read each other's
tensors by ``process_vm_readv``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastcomm._machine import identity as _machine
from fastcomm._measure.cases import Case
from fastcomm._measure.contenders import NotServedError
from fastcomm._measure.objects import all_gather_object
from peers.peer import Peer

_SOURCE = Path(__file__).with_name("floor.cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off")

# Of a case: the function's name, its buffers, and what it counts of an element: it, or its bytes.
_OPERATIONS = {
    "all_reduce": ("all_reduce", ("buffer",), 1),
    "barrier": ("barrier", (), 0),
    "broadcast": ("broadcast", ("buffer",), 4),
    "all_gather_into_tensor": ("all_gather", ("whole", "part"), 4),
    "reduce_scatter_tensor": ("reduce_scatter", ("part", "whole"), 1),
}


def library() -> Path:
    """Compile the program unless that has been done on this machine; returns the library.

    Raises:
        NotServedError: there is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        raise NotServedError("the floor has to be compiled, and there is no C++ compiler")
    text = _SOURCE.read_text() + " ".join(_FLAGS) + _machine.identity()
    path = _machine.file(f"floor-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so")
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [*compiler.split(), *_FLAGS, str(_SOURCE), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise NotServedError(f"the floor does not compile: {done.stderr.strip()[-300:]}")
        made.replace(path)
    return path


class Floor(Peer):
    """The program's collectives, of all ranks of a group."""

    _prefix = "floor_"

    def __init__(self, label: str, control: dist.ProcessGroup) -> None:
        super().__init__(label, control)
        rank, size = dist.get_rank(control), dist.get_world_size(control)
        self._ready: Any = None
        memory = -1
        try:
            self._code = ctypes.CDLL(str(library()))
            self._code.floor_open.restype = ctypes.c_void_p
            memory = self._code.floor_memory()
        except (NotServedError, OSError) as error:
            self.failed = str(error)
        # As long as all have it open, whoever may look at a process may open what it has.
        path = f"/proc/{os.getpid()}/fd/{memory}" if memory >= 0 else ""
        paths = all_gather_object(path, control)
        if all(paths):
            texts = (ctypes.c_char_p * size)(*(each.encode() for each in paths))
            self._ready = self._code.floor_open(rank, size, texts)
        opened = all_gather_object(bool(self._ready), control)
        if memory >= 0:
            os.close(memory)
        if not all(opened):
            reason = "ranks do not share memory, or there are more than 16"
            self.failed = next(filter(None, all_gather_object(self.failed, control)), reason)

    def call_of(self, case: Case) -> Callable[[], object]:
        if case.dtype != torch.float32:
            raise NotServedError(f"the floor sums float32, not {case.dtype}")
        name, buffers, unit = _OPERATIONS.get(case.name, ("", (), 0))
        function = getattr(self._code, self._prefix + name, None) if name else None
        if function is None:
            raise NotServedError(f"the floor has no {case.name}")
        function.restype = None
        # Those without parameters have addresses as they are: c_void_p keeps nothing alive.
        words = [ctypes.c_void_p(getattr(case, each).data_ptr()) for each in buffers]
        count = ctypes.c_uint64(case.numel * unit)
        return functools.partial(function, ctypes.c_void_p(self._ready), *words, count)


class SingleCopy(Floor):
    """The same, but ranks read each other's tensors where these lie, through the kernel."""

    _prefix = "floor_pulled_"

    def __init__(self, label: str, control: dist.ProcessGroup) -> None:
        super().__init__(label, control)
        if self.failed:
            return
        can = bool(self._code.floor_can_pull(ctypes.c_void_p(self._ready)))
        if not all(all_gather_object(can, control)):
            self.failed = "ranks may not read each other's memory (process_vm_readv)"

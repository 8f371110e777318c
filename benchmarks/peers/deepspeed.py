"""DeepSpeed's sum in shared memory, which it has for inference on CPUs; built at its first use."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fastcomm._measure.cases import Case
from fastcomm._measure.contenders import NotServedError, first_line
from fastcomm._measure.objects import all_gather_object
from peers.peer import Peer


def open_deepspeed(control: dist.ProcessGroup) -> str:
    """Build and initialise ``torch.ops.deepspeed.inference_all_reduce_`` for all ranks of a group.

    Its source: ``deepspeed/ops/csrc/cpu/comm/shm_interface.cpp``. It tells ranks of a machine and
    jobs apart by variables of the environment. Returns why it cannot be had, or nothing.
    """
    rank, size = dist.get_rank(control), dist.get_world_size(control)
    job = all_gather_object(str(os.getpid()), control)[0]
    words = {"LOCAL_SIZE": str(size), "MASTER_ADDR": "fastcomm-bench", "MASTER_PORT": job}
    before = {name: os.environ.get(name) for name in words}
    failed = ""
    try:
        from deepspeed.ops.op_builder import ShareMemCommBuilder

        built = ShareMemCommBuilder().load(verbose=False)
        os.environ.update(words)
        if built.vector_kernel_level() < 2:
            raise RuntimeError("its loops need AVX-512")
    except Exception as error:
        failed = f"DeepSpeed cannot be had: {first_line(error)}"
    failed = next(filter(None, all_gather_object(failed, control)), "")
    if not failed:
        built.initialize(size, rank)
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return failed


class DeepSpeed(Peer):
    """Its sum in shared memory."""

    def __init__(self, label: str, control: dist.ProcessGroup) -> None:
        super().__init__(label, control)
        self.failed = open_deepspeed(control)

    def call_of(self, case: Case) -> Callable[[], object]:
        if case.name != "all_reduce":
            raise NotServedError(f"DeepSpeed has no {case.name} in shared memory")
        if case.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise NotServedError(f"DeepSpeed has no sums of {case.dtype} in shared memory")
        words: Any = case
        call, buffer = torch.ops.deepspeed.inference_all_reduce_, words.buffer
        return lambda: call(buffer)

"""Peers that are no backends of torch: they work on a case's buffers, without torch in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fastcomm.bench.cases import Case
from fastcomm.bench.contenders import Contender, NotServedError, first_line
from fastcomm.bench.objects import all_gather_object


class Peer(Contender):
    """One of them; ``call_of`` says what it does for a case."""

    def call_of(self, case: Case) -> Callable[[], object]:
        """Return the call to measure.

        Raises:
            NotServedError: there is none.
        """
        raise NotImplementedError

    def bind(self, case: Case) -> Callable[[], object]:
        return self.call_of(case)

    def check(self, case: Case, control: dist.ProcessGroup) -> int:
        call = self.call_of(case)
        patched: Any = case
        patched.bind = lambda _: call  # what the case itself would call
        try:
            return case.check(control, control)
        finally:
            del patched.bind


class Mpi(Peer):
    """MPI, through ``mpi4py``; of ranks that ``mpiexec`` has started."""

    def call_of(self, case: Case) -> Callable[[], object]:
        from mpi4py import MPI

        world, buffers = MPI.COMM_WORLD, _arrays(case)
        known: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, buffers["buffer"]),
            "broadcast": lambda: world.Bcast(buffers["buffer"], 0),
            "all_gather_into_tensor": lambda: world.Allgather(buffers["part"], buffers["whole"]),
            "reduce_scatter_tensor": lambda: world.Reduce_scatter_block(
                buffers["whole"], buffers["part"]
            ),
            "barrier": world.Barrier,
        }
        if case.name not in known:
            raise NotServedError(f"{case.name} over MPI is not measured here")
        return known[case.name]


class DeepSpeed(Peer):
    """DeepSpeed's sum in shared memory, which it has for inference on CPUs; built at its first use.

    Source: ``deepspeed/ops/csrc/cpu/comm/shm_interface.cpp``. It tells ranks of a machine and jobs
    apart by variables of the environment.
    """

    def __init__(self, label: str, control: dist.ProcessGroup) -> None:
        super().__init__(label, control)
        rank, size = dist.get_rank(control), dist.get_world_size(control)
        job = all_gather_object(str(os.getpid()), control)[0]
        words = {"LOCAL_SIZE": str(size), "MASTER_ADDR": "fastcomm-bench", "MASTER_PORT": job}
        before = {name: os.environ.get(name) for name in words}
        try:
            from deepspeed.ops.op_builder import ShareMemCommBuilder

            built = ShareMemCommBuilder().load(verbose=False)
            os.environ.update(words)
            if built.vector_kernel_level() < 2:
                raise RuntimeError("its loops need AVX-512")
        except Exception as error:
            self.failed = f"DeepSpeed cannot be had: {first_line(error)}"
        failed = all_gather_object(self.failed, control)
        self.failed = next(filter(None, failed), "")
        if not self.failed:
            built.initialize(size, rank)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def call_of(self, case: Case) -> Callable[[], object]:
        if case.name != "all_reduce":
            raise NotServedError(f"DeepSpeed has no {case.name} in shared memory")
        if case.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise NotServedError(f"DeepSpeed has no sums of {case.dtype} in shared memory")
        words: Any = case
        call, buffer = torch.ops.deepspeed.inference_all_reduce_, words.buffer
        return lambda: call(buffer)


def _arrays(case: Case) -> dict[str, Any]:
    """Return a case's buffers as arrays in the same memory.

    Raises:
        NotServedError: MPI has no such element type.
    """
    found = {}
    for name, value in vars(case).items():
        if isinstance(value, torch.Tensor):
            if value.dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
                raise NotServedError(f"MPI has no elements of {value.dtype}")
            found[name] = value.numpy()
    return found

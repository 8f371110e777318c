"""No thread is joined, and no rank waited for, with the GIL: groups that are dropped, and waits."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import TRANSPORTS, on_ranks
from support.patience import SOON
from support.ranks import World
from torch.nn.parallel import DistributedDataParallel

from fastcomm._distributed import backend as fastcomm_backend

GLOO = {"FASTCOMM_TRANSPORT": "gloo"}


@on_ranks(2, environment=GLOO)
def test_letting_a_group_go_does_not_wait_for_the_gil(world: World) -> None:
    """Drop a backend while the thread of the Gloo group that serves it waits for the GIL."""
    options = SimpleNamespace(
        store=dist.FileStore(os.path.join(world.directory, "store"), world.size),
        group_rank=world.rank,
        group_size=world.size,
        timeout=world.timeout,
        group_id="0",
        global_ranks_in_group=[],
    )
    backend = fastcomm_backend.create(options, None)
    tensor = torch.full((4,), float(world.rank))
    maximum = dist.AllreduceOptions()
    maximum.reduceOp = dist.ReduceOp.MAX
    # A Gloo work keeps the state of the thread that made it. This object makes that involve Python,
    # as users' hooks and modes do: the work's end needs the GIL.
    torch._C._stash_obj_in_tls("fastcomm.test", object())
    work = backend.allreduce([tensor], maximum)
    sys.setswitchinterval(100)  # from here on nobody takes the GIL from this thread
    del work  # Gloo's thread has the last reference
    first = ctypes.c_float.from_address(tensor.data_ptr())
    while first.value != world.size - 1:
        pass
    begin = time.monotonic()
    while time.monotonic() - begin < 0.1:
        pass  # Gloo's thread is at the end of the work now
    del backend
    assert time.monotonic() - begin < SOON


@pytest.mark.parametrize("last", ["backend", "model"])
@on_ranks(2, environment=GLOO)
def test_whoever_lets_a_group_go_leaves_the_gil_to_gloo(world: World, last: str) -> None:
    world.init()
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    models = [DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)]
    dist.barrier()
    called: list[int] = []
    if world.rank == 1:
        store.wait(["letting go"])
        time.sleep(0.5)  # the other rank is in the destructor now
        backend.delegate.allreduce([torch.ones(4)]).wait()
        return
    # From Gloo itself: an operation of the group would end when the group is left.
    work = backend.delegate.allreduce([torch.ones(4)])
    work.get_future().add_done_callback(lambda done: called.append(world.rank))
    del work
    store.set("letting go", "")
    dist.destroy_process_group(group)
    del group
    if last == "backend":
        models.clear()
        del backend
    else:  # before torch 2.14 the reducer then destroys the backend, which has no Python object
        del backend
        models.clear()
    assert called == [0]


def _wait_with_the_gil(tensor: torch.Tensor) -> None:
    """Wait for the work of a tensor as compiled C++ does, which has come from Python."""
    library = ctypes.PyDLL(os.path.join(torch.__path__[0], "lib", "libtorch_cpu.so"))
    capsule = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([tensor])[0]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    wait, result = library.aoti_torch_cpu__c10d_functional_wait_tensor, ctypes.c_void_p()
    assert wait(ctypes.c_void_p(pointer(capsule, None)), ctypes.byref(result)) == 0


@on_ranks(2, environments=TRANSPORTS)
def test_compiled_code_that_waits_leaves_python_to_other_threads(world: World) -> None:
    """Reductions, messages and blocks: rank 1 begins when a thread of rank 0 tells it to."""
    world.init()

    def message(tensor: torch.Tensor) -> Any:
        return dist.irecv(tensor, 1) if world.rank == 0 else dist.isend(tensor, 0)

    def block(tensor: torch.Tensor) -> Any:
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(tensor)
        return manager.works[-1]

    def reduction(tensor: torch.Tensor) -> Any:
        return dist.all_reduce(tensor, async_op=True)

    for call in (reduction, message, block):
        name, tensor = call.__name__, torch.full((4,), float(world.rank))
        if world.rank == 1:
            world.hear(name)
            call(tensor).wait()
            continue
        torch._C._distributed_c10d._register_work(tensor, call(tensor))
        timer = threading.Timer(0.3, world.tell, (name,))
        timer.start()
        _wait_with_the_gil(tensor)
        assert tensor.tolist() == [1.0] * 4

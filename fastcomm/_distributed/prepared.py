"""Collectives whose arguments are given once: `prepare`."""
from __future__ import annotations
import torch, torch.distributed as dist
from fastcomm import _native
def prepare(operation, *tensors, group=None, op="sum", root=-1):
    native=_native.load()
    group=group or dist.group.WORLD
    device=tensors[0].device if tensors else torch.device("cpu")
    backend=group._get_backend(device)
    ins=[] ; outs=list(tensors)
    if len(tensors)==2: outs,ins=[tensors[0]],[tensors[1]]
    return native.PreparedCall(backend,operation,ins,outs,op,root,[],[],None)

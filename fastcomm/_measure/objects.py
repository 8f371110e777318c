"""Values of all ranks, without NumPy, which torch's own ``all_gather_object`` needs."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist


def all_gather_object(value: Any, control: dist.ProcessGroup) -> list[Any]:
    """Return what every rank gave, in order of rank; JSON carries it, so tuples become lists."""
    own = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
    longest = torch.tensor(len(own))
    dist.all_reduce(longest, dist.ReduceOp.MAX, group=control)
    rows = torch.zeros(dist.get_world_size(control), int(longest), dtype=torch.uint8)
    rows[dist.get_rank(control), : len(own)] = own
    dist.all_reduce(rows, group=control)
    return [json.loads(bytes(row).rstrip(b"\0")) for row in rows.tolist()]

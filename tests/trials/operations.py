"""Random operations, by name and by number."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from support import reductions
from trials import collective_calls as collective
from trials import other_calls as other
from trials import values
from trials.case import LARGEST, Case, Maker, Spec
from trials.layouts import Shape

MAKERS: dict[str, Callable[[Maker], None]] = {
    "all_reduce": collective.all_reduce,
    "all_reduce_coalesced": collective.all_reduce_coalesced,
    "sparse all_reduce": other.sparse,
    "reduce": collective.reduce,
    "broadcast": collective.broadcast,
    "all_gather": collective.all_gather,
    "all_gather_coalesced": collective.all_gather_coalesced,
    "all_gather_into_tensor": collective.all_gather_into_tensor,
    "reduce_scatter": collective.reduce_scatter,
    "reduce_scatter_tensor": collective.reduce_scatter_tensor,
    "gather": collective.gather,
    "scatter": collective.scatter,
    "all_to_all": collective.all_to_all,
    "all_to_all_single": collective.all_to_all_single,
    "messages": other.messages,
    "batch_isend_irecv": other.batch,
    "barrier": other.barrier,
    "objects": other.objects,
    "coalesced all_reduce": lambda make: other.coalesced(make, 0),
    "coalesced all_gather": lambda make: other.coalesced(make, 1),
    "coalesced reduce_scatter": lambda make: other.coalesced(make, 2),
}
SEVERAL = ("coalesced", "all_to_all", "batch_isend_irecv", "all_gather", "reduce_scatter")


def make_case(spec: Spec, rank: int, group: dist.ProcessGroup) -> Case:
    """Return the case of a rank of the group."""
    make = Maker(spec, rank, group)
    MAKERS[spec.name](make)
    return make.made()


def _shape(choice: random.Random, dtype: torch.dtype, large: bool) -> Shape:
    if large:
        most = LARGEST // dtype.itemsize
        count = choice.choice([choice.randrange(most // 4, most), most // 2])
        return choice.choice([(count,), (count // 512, 512)])
    dims = choice.choice([0, 1, 1, 2, 2, 3, 4])
    sizes = [1, 2, 3, 4, 5, 7, 16, 33]
    return tuple(0 if choice.random() < 0.05 else choice.choice(sizes) for _ in range(dims))


def _drawn_type(choice: random.Random, name: str) -> tuple[torch.dtype, str]:
    """Draw a type and a reduction: mostly one that exists."""
    if name == "sparse all_reduce":
        return choice.choice([torch.float32, torch.float64, torch.int32, torch.int64]), "sum"
    if "reduce" not in name:
        return choice.choice(values.MOVED), "sum"
    dtype = choice.choice(values.REDUCED if choice.random() < 0.95 else values.MOVED)
    ops = [op for op in reductions.OPS if reductions.exists(op, dtype)]
    # torch's coalescing manager does not survive what torch itself refuses.
    exists = ops and (choice.random() < 0.9 or ("coalesced " in name and dtype.is_complex))
    return dtype, choice.choice(ops if exists else reductions.OPS)


def draw_spec(seed: int, groups: Sequence[tuple[int, ...]]) -> Spec:
    """Draw an operation for one of the groups."""
    choice = random.Random(seed)
    name = choice.choice(list(MAKERS))
    dtype, op = _drawn_type(choice, name)
    several = any(word in name for word in SEVERAL) and "tensor" not in name
    large = choice.random() < 0.04
    count = choice.randint(1, 3) if several and not large else 1
    members = choice.choice(groups)
    shapes = [_shape(choice, dtype, large) for _ in range(count)]
    kind = choice.choice([values.WHOLE, values.WHOLE, values.SPECIAL])
    if name == "sparse all_reduce":
        kind, shapes = values.WHOLE, [shapes[0] or (5,)]
    return Spec(
        name=name,
        seed=seed,
        members=members,
        dtype=dtype,
        kind=kind,
        op=op,
        shapes=shapes,
        root=choice.randrange(len(members)),
        asynchronous=choice.random() < 0.5,
        plain=choice.choice([0.0, 0.5, 1.0, 1.0]),
        alike=choice.random() < 0.5,
        option=choice.randrange(60),
    )

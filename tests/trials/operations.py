"""Random operations: the call, its tensors, and what plain torch says that they hold afterwards."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from support import reductions
from trials import values
from trials.layouts import LAZY, Laid, Layout, Shape, drawn

ROOTED = ("reduce", "broadcast", "gather", "scatter", "messages", "batch_isend_irecv")
GLOO = [*values.FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64]
LARGEST = 3 << 20  # bytes of a large tensor


@dataclass
class Spec:
    """An operation, the same on every rank.

    Attributes:
        members: the global ranks of its group, in order.
        root: a rank of the group.
        shapes: of the tensors; what they mean depends on the operation.
        plain: the part of tensors that are plain.
        alike: whether all tensors lie alike, on all ranks.
    """

    name: str
    seed: int
    members: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    op: str
    shapes: list[Shape]
    root: int
    asynchronous: bool
    plain: float
    alike: bool
    option: int

    def takes(self, form: str, written: bool) -> bool:
        """Whether torch hands the backend a tensor of this form.

        What is written to lazily negated or conjugated ones is lost in torch, but in lists of
        lists. Most of torch's functions refuse conjugated ones.
        """
        lists = self.name in ("all_gather", "all_gather_coalesced", "gather")
        if written and form in (*LAZY, "conjugated"):
            return lists and form != "conjugated"
        reads = ("reduce_scatter", "reduce_scatter_tensor", "gather")
        return form != "conjugated" or self.name in reads

    @property
    def for_gloo(self) -> Spec | None:
        """The same for Gloo; None where some of Gloo's ranks crash, or wait for others that raise.

        Tensors are plain, unless all ranks give what Gloo may refuse.
        """
        if "reduce_scatter" in self.name and not all(self.shapes):
            return None  # without dimensions: crashes
        if self.name in ROOTED and self.dtype not in GLOO:
            return None
        same = self.alike and len(self.shapes) == 1 and self.name not in ROOTED
        return self if same else replace(self, plain=1.0)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def reduces(self) -> bool:
        return "reduce" in self.name

    @property
    def refused(self) -> bool:
        """Whether there is no such reduction."""
        return self.reduces and not values.exists(self.op, self.dtype)

    @property
    def exact(self) -> bool:
        """Whether the result does not depend on an order of summation."""
        return not self.reduces or (self.kind == values.WHOLE and self.op != "premul_sum")


@dataclass
class Case:
    """A rank's call, with tensors of its own."""

    call: Callable[[], Any]
    wanted: list[tuple[str, Laid, torch.Tensor | None]] = field(default_factory=list)
    objects: Callable[[], str] = lambda: ""  # what is wrong with results that are no tensors

    def trouble(self) -> str:
        for name, laid, wanted in self.wanted:
            if text := laid.trouble(wanted):
                return f"{name}: {text}"
        return self.objects()

    def touched(self) -> str:
        """Say which tensor a call that raised has changed, if any."""
        found = ((name, laid.trouble()) for name, laid, _ in self.wanted)
        return next((f"{name} of a call that raised: {text}" for name, text in found if text), "")


class Maker:
    """Makes the case of one rank."""

    def __init__(self, spec: Spec, rank: int, group: dist.ProcessGroup) -> None:
        self.spec, self.rank, self.group, self.size = spec, rank, group, spec.size
        self.case = Case(lambda: None)
        self.options: dict[str, Any] = {"group": group, "async_op": spec.asynchronous}

    def _layout(self, rank: int, name: str, shape: Shape, written: bool) -> Layout:
        spec = self.spec
        which = f"{spec.seed}" if spec.alike else f"{spec.seed} {rank} {name}"
        found = drawn(random.Random(which), shape, spec.dtype, written, spec.plain)
        return found if spec.takes(found.form, written) else Layout()

    def term(self, rank: int, name: str, shape: Shape, written: bool = False) -> torch.Tensor:
        """Return what a rank brings."""
        found = values.made(self.spec.kind, self.spec.dtype, shape, self.spec.seed, rank, name)
        if self._layout(rank, name, shape, written).form == "expanded":
            found = found[:1].expand(shape).clone()
        return found

    def given(self, name: str, shape: Shape, wanted: Any = None) -> torch.Tensor:
        """Lay out this rank's input; ``wanted`` is what it must be afterwards, if it is written."""
        written = wanted is not None
        return self._laid(name, self.term(self.rank, name, shape, written), wanted, written)

    def output(self, name: str, wanted: torch.Tensor) -> torch.Tensor:
        """Lay out a tensor for a result."""
        before = values.made(values.WHOLE, self.spec.dtype, tuple(wanted.shape), "before")
        return self._laid(name, before, wanted, True)

    def _laid(self, name: str, begin: torch.Tensor, wanted: Any, written: bool) -> torch.Tensor:
        laid = Laid(begin, self._layout(self.rank, name, tuple(begin.shape), written))
        self.case.wanted.append((name, laid, wanted))
        return laid.given

    def terms(self, name: str, shape: Shape, written: bool = False) -> list[torch.Tensor]:
        return [self.term(rank, name, shape, written) for rank in range(self.size)]

    def sum(self, name: str, shape: Shape, written: bool = False) -> torch.Tensor:
        """Return the reduction of all ranks' terms; something if there is none."""
        terms = self.terms(name, shape, written)
        return terms[self.rank] if self.spec.refused else values.reduced(terms, self.spec.op)

    def op(self) -> Any:
        return reductions.op_of(self.spec.op)


def _ranks_of(make: Maker, rank: int, word: str) -> dict[str, int]:
    """Name a rank as torch allows, by its number in the world or in the group."""
    if make.spec.option % 2:
        return {f"group_{word}": rank}
    return {word: make.spec.members[rank]}


def _all_reduce(make: Maker) -> None:
    shape = make.spec.shapes[0]
    tensor = make.given("tensor", shape, make.sum("tensor", shape, True))
    make.case.call = lambda: dist.all_reduce(tensor, make.op(), **make.options)


def _all_reduce_coalesced(make: Maker) -> None:
    tensors = [
        make.given(f"tensor {i}", shape, make.sum(f"tensor {i}", shape, True))
        for i, shape in enumerate(make.spec.shapes)
    ]
    make.case.call = lambda: dist.all_reduce_coalesced(tensors, make.op(), **make.options)


def _reduce(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    wanted = make.sum("tensor", shape, True)
    if make.rank != root:
        wanted = make.term(make.rank, "tensor", shape, True)
    tensor = make.given("tensor", shape, wanted)
    make.case.call = lambda: dist.reduce(
        tensor, op=make.op(), **_ranks_of(make, root, "dst"), **make.options
    )


def _broadcast(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    wanted = make.term(root, "tensor", shape, False)
    own = make.rank == root
    tensor = make.given("tensor", shape) if own else make.output("result", wanted)
    make.case.call = lambda: dist.broadcast(tensor, **_ranks_of(make, root, "src"), **make.options)


def _all_gather(make: Maker) -> None:
    shapes = make.spec.shapes
    shapes = [shapes[r % len(shapes)] for r in range(make.size)]
    terms = [make.term(r, "input", shape) for r, shape in enumerate(shapes)]
    source = make.given("input", shapes[make.rank])
    outputs = [make.output(f"output {r}", term) for r, term in enumerate(terms)]
    make.case.call = lambda: dist.all_gather(outputs, source, **make.options)


def _all_gather_coalesced(make: Maker) -> None:
    shapes = make.spec.shapes
    sources = [make.given(f"input {i}", shape) for i, shape in enumerate(shapes)]
    outputs = [
        [
            make.output(f"output {r}, {i}", make.term(r, f"input {i}", shape))
            for i, shape in enumerate(shapes)
        ]
        for r in range(make.size)
    ]
    make.case.call = lambda: dist.all_gather_coalesced(outputs, sources, **make.options)


def _whole_shape(size: int, shape: Shape, stacked: bool) -> Shape:
    """Return the shape of joined parts: along the first dimension, or along a new one."""
    return (size, *shape) if stacked or not shape else (size * shape[0], *shape[1:])


def _whole(parts: list[torch.Tensor], stacked: bool) -> torch.Tensor:
    return values.joined(parts, _whole_shape(len(parts), tuple(parts[0].shape), stacked))


def _all_gather_into_tensor(make: Maker) -> None:
    shape = make.spec.shapes[0]
    wanted = _whole(make.terms("input", shape), make.spec.option % 2 == 1)
    if make.spec.option % 3 == 0:  # in place
        own = make.term(make.rank, "input", shape)
        output = make.output("output", wanted)
        part = output.detach().chunk(make.size)[make.rank].view(shape) if own.numel() else own
        with torch.no_grad():
            part.copy_(own)
    else:
        part, output = make.given("input", shape), make.output("output", wanted)
    make.case.call = lambda: dist.all_gather_into_tensor(output, part, **make.options)


def _reduce_scatter(make: Maker) -> None:
    shapes = make.spec.shapes
    shapes = [shapes[r % len(shapes)] for r in range(make.size)]
    sources = [make.given(f"input {r}", shape) for r, shape in enumerate(shapes)]
    output = make.output("output", make.sum(f"input {make.rank}", shapes[make.rank]))
    make.case.call = lambda: dist.reduce_scatter(output, sources, make.op(), **make.options)


def _reduce_scatter_tensor(make: Maker) -> None:
    shape, size = make.spec.shapes[0], make.size
    whole = _whole_shape(size, shape, make.spec.option % 2 == 1)
    wanted = make.sum("input", whole).reshape(size, *shape)[make.rank]
    source, output = make.given("input", whole), make.output("output", wanted)
    make.case.call = lambda: dist.reduce_scatter_tensor(output, source, make.op(), **make.options)


def _gather(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    source = make.given("input", shape)
    outputs = None
    if make.rank == root:
        outputs = [
            make.output(f"output {r}", term) for r, term in enumerate(make.terms("input", shape))
        ]
    make.case.call = lambda: dist.gather(
        source, outputs, **_ranks_of(make, root, "dst"), **make.options
    )


def _scatter(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    sources = None
    if make.rank == root:
        sources = [make.given(f"input {r}", shape) for r in range(make.size)]
    output = make.output("output", make.term(root, f"input {make.rank}", shape))
    make.case.call = lambda: dist.scatter(
        output, sources, **_ranks_of(make, root, "src"), **make.options
    )


def _pair(make: Maker, source: int, target: int) -> Shape:
    shapes = make.spec.shapes
    return shapes[(source * 3 + target * 5) % len(shapes)]


def _all_to_all(make: Maker) -> None:
    me, ranks = make.rank, range(make.size)
    sources = [make.given(f"to {r}", _pair(make, me, r)) for r in ranks]
    outputs = [
        make.output(f"from {r}", make.term(r, f"to {me}", _pair(make, r, me))) for r in ranks
    ]
    make.case.call = lambda: dist.all_to_all(outputs, sources, **make.options)


def _all_to_all_single(make: Maker) -> None:
    """Rows between each pair: a random number, or the same for all without sizes."""
    me, size, even = make.rank, make.size, make.spec.option % 3 == 0
    choice = random.Random(make.spec.seed)
    row = make.spec.shapes[0][1:]
    most = make.spec.shapes[0][0] if make.spec.shapes[0] else 1
    rows = [[most if even else choice.randint(0, most) for _ in range(size)] for _ in range(size)]
    whole = [(sum(rows[r]), *row) for r in range(size)]
    parts = [make.term(r, "input", whole[r]).split(rows[r])[me] for r in range(size)]
    wanted = values.joined(parts, (sum(r[me] for r in rows), *row))
    source, output = make.given("input", whole[me]), make.output("output", wanted)
    splits = [] if even else [[r[me] for r in rows], rows[me]]
    make.case.call = lambda: dist.all_to_all_single(output, source, *splits, **make.options)


def _messages(make: Maker) -> None:
    """Send from one rank to others, or receive, perhaps from any rank and with a tag."""
    spec, root, size = make.spec, make.spec.root, make.size
    choice = random.Random(spec.seed)
    pairs = [(root, peer) for peer in range(size) if peer != root]
    pairs = [pair if choice.random() < 0.5 else pair[::-1] for pair in pairs for _ in range(2)]
    shape, tag, calls = spec.shapes[0], spec.option % 4, []
    any_rank = spec.option % 5 == 0 and size == 2
    for i, (source, target) in enumerate(pairs):
        if make.rank == source:
            calls.append((True, target, make.given(f"message {i}", shape)))
        elif make.rank == target:
            wanted = make.term(source, f"message {i}", shape)
            calls.append((False, source, make.output(f"received {i}", wanted)))

    def call() -> Any:
        works = []
        for sends, peer, tensor in calls:
            if spec.asynchronous:
                function = dist.isend if sends else dist.irecv
            else:
                function = dist.send if sends else dist.recv
            where = _ranks_of(make, peer, "dst" if sends else "src")
            where = {} if any_rank and not sends else where
            works.append(function(tensor, group=make.group, tag=tag, **where))
        return works if spec.asynchronous else None

    make.case.call = call


def _batch(make: Maker) -> None:
    """Exchange messages of random sizes with each rank in one batch."""
    me, choice = make.rank, random.Random(make.spec.seed)
    works: list[dist.P2POp] = []
    for i in range(choice.randint(1, 4)):
        source, target = choice.sample(range(make.size), 2) if make.size > 1 else (0, 0)
        shape = _pair(make, source, target)
        if source == target:
            continue
        if me == source:
            tensor = make.given(f"message {i}", shape)
            works.append(dist.P2POp(dist.isend, tensor, group=make.group, group_peer=target))
        if me == target:
            tensor = make.output(f"received {i}", make.term(source, f"message {i}", shape))
            works.append(dist.P2POp(dist.irecv, tensor, group=make.group, group_peer=source))
    make.case.call = lambda: dist.batch_isend_irecv(works) if works else None


def _sparse(make: Maker) -> None:
    """Sum sparse tensors of different places, with some places twice."""
    shape = make.spec.shapes[0]
    terms = [term * (term.abs() > 1) for term in make.terms("sparse", shape)]
    wanted = torch.stack([2 * term for term in terms]).sum(0, dtype=make.spec.dtype)
    # Dense dimensions in some.
    tensor = terms[make.rank].to_sparse(1 + make.spec.option % len(shape))
    places, numbers = tensor.indices(), tensor.values()
    tensor = torch.sparse_coo_tensor(
        torch.cat([places, places], 1), torch.cat([numbers, numbers]), shape
    )
    make.case.call = lambda: dist.all_reduce(tensor, **make.options)
    make.case.objects = lambda: "" if torch.equal(tensor.to_dense(), wanted) else "a wrong sum"


def _barrier(make: Maker) -> None:
    make.case.call = lambda: dist.barrier(**make.options)


def _objects(make: Maker) -> None:
    """One of the four operations on objects."""
    spec, me, size, root = make.spec, make.rank, make.size, make.spec.root

    def of(rank: int) -> list[Any]:
        text = "x" * (math.prod(spec.shapes[0]) * (rank + 1))
        return [None, {"rank": rank, 3: (text, 1.5)}, values.made(values.WHOLE, torch.int32, (2,))]

    every = [of(rank) for rank in range(size)]
    which = spec.option % 4
    found: list[Any] = [None] * size
    wanted: list[Any] = every

    def call() -> None:
        nonlocal found, wanted
        if which == 0:
            dist.all_gather_object(found, of(me), group=make.group)
        elif which == 1:
            wanted = every if me == root else [None] * size
            into = found if me == root else None
            dist.gather_object(of(me), into, group=make.group, group_dst=root)
        elif which == 2:
            found, wanted = (of(root) if me == root else [None] * 3), of(root)
            dist.broadcast_object_list(found, group=make.group, group_src=root)
        else:
            found, wanted = [None], [every[me]]
            dist.scatter_object_list(
                found, every if me == root else None, group=make.group, group_src=root
            )

    make.case.call = call
    make.case.objects = lambda: "" if repr(found) == repr(wanted) else f"{found} is not {wanted}"


def _coalesced(make: Maker, which: int) -> None:
    """Several calls under torch's coalescing manager."""
    calls: list[Callable[[], Any]] = []
    size, stacked = make.size, make.spec.option % 2 == 1
    for i, shape in enumerate(make.spec.shapes):
        if which == 0:
            tensor = make.given(f"tensor {i}", shape, make.sum(f"tensor {i}", shape, True))
            calls.append(lambda t=tensor: dist.all_reduce(t, make.op(), group=make.group))
        elif which == 1:
            name = f"input {i}"
            output = make.output(f"output {i}", _whole(make.terms(name, shape), stacked))
            source = make.given(name, shape)
            calls.append(
                lambda o=output, s=source: dist.all_gather_into_tensor(o, s, group=make.group)
            )
        else:
            whole = _whole_shape(size, shape, stacked)
            wanted = make.sum(f"input {i}", whole).reshape(size, *shape)[make.rank]
            output = make.output(f"output {i}", wanted)
            source = make.given(f"input {i}", whole)
            calls.append(
                lambda o=output, s=source: dist.reduce_scatter_tensor(
                    o, s, make.op(), group=make.group
                )
            )

    def call() -> Any:
        manager = dist.distributed_c10d._coalescing_manager
        with manager(group=make.group, async_ops=make.spec.asynchronous) as works:
            for each in calls:
                each()
        return works if make.spec.asynchronous else None

    make.case.call = call


MAKERS: dict[str, Callable[[Maker], None]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "sparse all_reduce": _sparse,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "messages": _messages,
    "batch_isend_irecv": _batch,
    "barrier": _barrier,
    "objects": _objects,
    "coalesced all_reduce": lambda make: _coalesced(make, 0),
    "coalesced all_gather": lambda make: _coalesced(make, 1),
    "coalesced reduce_scatter": lambda make: _coalesced(make, 2),
}
SEVERAL = ("coalesced", "all_to_all", "batch_isend_irecv", "all_gather", "reduce_scatter")


def make_case(spec: Spec, rank: int, group: dist.ProcessGroup) -> Case:
    """Return the case of a rank of the group."""
    make = Maker(spec, rank, group)
    MAKERS[spec.name](make)
    return make.case


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
    ops = [op for op in reductions.OPS if values.exists(op, dtype)]
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

"""The collectives on tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist
from trials import values
from trials.case import Maker, pair, ranks_of, whole, whole_shape
from trials.layouts import Shape


def summed(make: Maker, name: str, shape: Shape) -> torch.Tensor:
    """Lay out a tensor that is reduced in place."""
    return make.given(name, shape, lambda: make.sum(name, shape, True))


def all_reduce(make: Maker) -> None:
    tensor = summed(make, "tensor", make.spec.shapes[0])
    make.case.call = lambda: dist.all_reduce(tensor, make.op(), **make.options)


def all_reduce_coalesced(make: Maker) -> None:
    tensors = [summed(make, f"tensor {i}", shape) for i, shape in enumerate(make.spec.shapes)]
    make.case.call = lambda: dist.all_reduce_coalesced(tensors, make.op(), **make.options)


def reduce(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    if make.rank == root:
        tensor = summed(make, "tensor", shape)
    else:
        tensor = make.given("tensor", shape, make.term(make.rank, "tensor", shape, True))
    make.case.call = lambda: dist.reduce(
        tensor, op=make.op(), **ranks_of(make, root, "dst"), **make.options
    )


def broadcast(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    wanted = make.term(root, "tensor", shape, False)
    own = make.rank == root
    tensor = make.given("tensor", shape) if own else make.output("result", wanted)
    make.case.call = lambda: dist.broadcast(tensor, **ranks_of(make, root, "src"), **make.options)


def all_gather(make: Maker) -> None:
    shapes = make.spec.shapes
    shapes = [shapes[r % len(shapes)] for r in range(make.size)]
    terms = [make.term(r, "input", shape) for r, shape in enumerate(shapes)]
    source = make.given("input", shapes[make.rank])
    outputs = [make.output(f"output {r}", term) for r, term in enumerate(terms)]
    make.case.call = lambda: dist.all_gather(outputs, source, **make.options)


def all_gather_coalesced(make: Maker) -> None:
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


def gathered(make: Maker, name: str, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Lay out the output and the input of an all_gather into one tensor."""
    wanted = whole(make.terms(name, shape), make.spec.option % 2 == 1)
    return make.output(f"output of {name}", wanted), make.given(name, shape)


def all_gather_into_tensor(make: Maker) -> None:
    shape = make.spec.shapes[0]
    output, part = gathered(make, "input", shape)
    if make.spec.option % 3 == 0:  # in place
        own = make.term(make.rank, "input", shape)
        part = output.detach().chunk(make.size)[make.rank].view(shape) if own.numel() else own
        with torch.no_grad():
            part.copy_(own)
    make.case.call = lambda: dist.all_gather_into_tensor(output, part, **make.options)


def reduce_scatter(make: Maker) -> None:
    shapes = make.spec.shapes
    shapes = [shapes[r % len(shapes)] for r in range(make.size)]
    sources = [make.given(f"input {r}", shape) for r, shape in enumerate(shapes)]
    output = make.output("output", make.sum(f"input {make.rank}", shapes[make.rank]))
    make.case.call = lambda: dist.reduce_scatter(output, sources, make.op(), **make.options)


def scattered(make: Maker, name: str, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Lay out the output and the input of a reduce_scatter of one tensor."""
    every = whole_shape(make.size, shape, make.spec.option % 2 == 1)
    own = [term.reshape(make.size, *shape)[make.rank] for term in make.terms(name, every)]
    return make.output(f"output of {name}", make.reduced(own)), make.given(name, every)


def reduce_scatter_tensor(make: Maker) -> None:
    output, source = scattered(make, "input", make.spec.shapes[0])
    make.case.call = lambda: dist.reduce_scatter_tensor(output, source, make.op(), **make.options)


def gather(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    source = make.given("input", shape)
    outputs = None
    if make.rank == root:
        outputs = [
            make.output(f"output {r}", term) for r, term in enumerate(make.terms("input", shape))
        ]
    make.case.call = lambda: dist.gather(
        source, outputs, **ranks_of(make, root, "dst"), **make.options
    )


def scatter(make: Maker) -> None:
    shape, root = make.spec.shapes[0], make.spec.root
    sources = None
    if make.rank == root:
        sources = [make.given(f"input {r}", shape) for r in range(make.size)]
    output = make.output("output", make.term(root, f"input {make.rank}", shape))
    make.case.call = lambda: dist.scatter(
        output, sources, **ranks_of(make, root, "src"), **make.options
    )


def all_to_all(make: Maker) -> None:
    me, ranks = make.rank, range(make.size)
    sources = [make.given(f"to {r}", pair(make, me, r)) for r in ranks]
    outputs = [make.output(f"from {r}", make.term(r, f"to {me}", pair(make, r, me))) for r in ranks]
    make.case.call = lambda: dist.all_to_all(outputs, sources, **make.options)


def all_to_all_single(make: Maker) -> None:
    """Rows between each pair: a random number, or the same for all without sizes."""
    me, size, even = make.rank, make.size, make.spec.option % 3 == 0
    row = make.spec.shapes[0][1:]
    most = make.spec.shapes[0][0] if make.spec.shapes[0] else 1
    rows = [[most] * size] * size if even else make.rows(most)
    every = [(sum(rows[r]), *row) for r in range(size)]
    parts = [make.term(r, "input", every[r]).split(rows[r])[me] for r in range(size)]
    wanted = values.joined(parts, (sum(r[me] for r in rows), *row))
    source, output = make.given("input", every[me]), make.output("output", wanted)
    splits = [] if even else [[r[me] for r in rows], rows[me]]
    make.case.call = lambda: dist.all_to_all_single(output, source, *splits, **make.options)

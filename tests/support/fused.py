"""Gradients, and the results of a fused reduction, in plain torch: the tree, roundings, norms."""

from __future__ import annotations

import math
from typing import Any

import torch
from support import tree

BLOCK, PIECE, LANES = 4096, 512, 32

SHAPES = [(3, 5), (4096,), (4097,), (0,), (70001,), (), (1,), (2, 3, 4, 5), (64, 129)]
WIDE = [torch.float32, torch.float64]
NARROW = [torch.float16, torch.bfloat16]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"average": False, "norm_type": 1},
    {"scale": 1 / 3, "norm_type": math.inf},
    {"comm_dtype": torch.bfloat16},
    {"comm_dtype": torch.float16, "scale": 0.1, "norm_type": None},
]


def gradients(rank: int, seed: int = 0) -> list[torch.Tensor]:
    """Return values of many magnitudes, which cancel, in all types and several layouts."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    made = []
    for i, shape in enumerate(SHAPES):
        dtype = [*WIDE, *NARROW][i % 4] if i != 4 else torch.float32
        value = torch.randn(shape, generator=generator, dtype=torch.float32)
        scale = torch.randint(-6, 6, shape, generator=generator)
        made.append((value * 2.0**scale).to(dtype))
    made.append(torch.randn(6, 7, generator=generator).t())
    made.append(torch.randn(2, 3, 8, 8, generator=generator).to(memory_format=torch.channels_last))
    made.append(torch.randn(5, 6, generator=generator)[:, ::2])  # with gaps
    made.append(torch.randn(40, generator=generator, dtype=torch.complex64))
    return made


def reduced(
    terms: list[torch.Tensor], average: bool, scale: float, wire: torch.dtype | None
) -> torch.Tensor:
    """Reduce one gradient of every rank, to its own type."""
    dtype = terms[0].dtype
    through = wire if wire is not None and dtype == torch.float32 else dtype
    wide = torch.float64 if through == torch.float64 else torch.float32
    total = tree.tree_sum([term.to(through).to(wide) for term in terms])
    if average:
        total = total / torch.tensor(len(terms), dtype=wide)
    return (total * torch.tensor(scale, dtype=wide)).to(through).to(dtype)


def part(gradient: torch.Tensor, norm_type: float) -> float:
    """Return what a gradient adds to a norm: a tree over blocks, and within each over columns."""
    flat = in_order(gradient).to(torch.float64)
    if norm_type == math.inf:
        return float(flat.abs().max()) if flat.numel() else 0.0
    blocks = torch.zeros(math.ceil(len(flat) / BLOCK), BLOCK, dtype=torch.float64)
    blocks.view(-1)[: len(flat)] = flat * flat if norm_type == 2 else flat.abs()
    pieces = blocks.view(len(blocks), BLOCK // PIECE, PIECE // LANES, LANES)
    columns = torch.zeros(len(blocks), BLOCK // PIECE, LANES, dtype=torch.float64)
    for row in pieces.unbind(2):
        columns = columns + row  # the zeros after a last block change nothing
    leaves = columns.transpose(1, 2).flatten(1)  # lane by lane, each its pieces
    while leaves.shape[1] > 1:
        leaves = leaves[:, ::2] + leaves[:, 1::2]
    return _tree(leaves[:, 0].tolist())


def _tree(values: list[float]) -> float:
    """Sum neighbours, then pairs of pairs; an odd one passes up."""
    while len(values) > 1:
        pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[2 * len(pairs) :]
    return values[0] if values else 0.0


def in_order(gradient: torch.Tensor) -> torch.Tensor:
    """Return the elements in the order in which they lie in memory; gaps do not matter."""
    real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    if torch.empty_like(real).stride() != real.stride():
        return real.reshape(-1)
    order = sorted(range(real.dim()), key=lambda d: (-real.stride(d), d))
    return real.permute(order).reshape(-1)


def norm(parts: list[float], norm_type: float) -> float:
    """Combine the gradients' parts, in their order, as a tree."""
    if norm_type == math.inf:
        return math.nan if any(math.isnan(p) for p in parts) else max(parts, default=0.0)
    return math.sqrt(_tree(parts)) if norm_type == 2 else _tree(parts)


def moved(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return copies on a device with the same strides: `to` leaves no gaps."""
    made = []
    for tensor in tensors:
        there = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
        )
        made.append(there.copy_(tensor))
    return made


def check_fused(found: Any, expected: Any, device: torch.device) -> None:
    """Compare what a fused reduction on a device has found with the CPU's."""
    for name in ("total_norm", "found_inf", "partial_norms"):
        there, here = getattr(found, name), getattr(expected, name)
        assert (there is None) == (here is None), name
        if here is not None:
            assert there.device == device and tree.same_bits(there.cpu(), here), name

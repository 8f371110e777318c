"""A small LLaMA that decodes one token after the other, cut over the ranks for tensor parallelism.

Heads and the inner width of the MLP are divided: ``qkv``, ``gate`` and ``up`` by columns, ``out``
and ``down`` by rows. So each layer has two sums over the ranks, of ``hidden`` numbers each.
Embedding and head are on every rank as a whole. Weights are random, of a fixed seed, and those of
a rank are parts of what one process alone would have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

WORDS = 2048
CACHE = 128  # tokens
BLOCK = 8  # layers that are compiled as one
_DTYPE = torch.bfloat16
_SEED = 0

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Returns the sum over the ranks, in the given tensor or in another."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model as a whole."""

    hidden: int
    layers: int

    @property
    def head(self) -> int:
        """The width of a head: 64, or less where the model is tiny."""
        return min(64, self.hidden // 2)

    @property
    def inner(self) -> int:
        """The inner width of the MLP: 8/3 of the outer one, in multiples of 64."""
        return -(-8 * self.hidden // 3 // 64) * 64


class Layer(NamedTuple):
    """A rank's part of a layer: weights, and keys and values of past tokens."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class Place(NamedTuple):
    """What a position means for every layer."""

    position: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor


Layers = Sequence[Layer]
Run = Callable[[torch.Tensor, Place, Layers, Reduce], torch.Tensor]


def run_layers(states: torch.Tensor, place: Place, layers: Layers, reduce: Reduce) -> torch.Tensor:
    """Return the states after some layers, whose caches are filled in at the position."""
    for layer in layers:
        states = states + reduce(_attention(states, place, layer))
        states = states + reduce(_mlp(states, layer))
    return states


def _attention(states: torch.Tensor, place: Place, layer: Layer) -> torch.Tensor:
    _, heads, _, width = layer.keys.shape
    normed = F.rms_norm(states, states.shape[-1:], layer.attention_norm, 1e-5)
    rotated, value = F.linear(normed, layer.qkv).view(3, heads, 1, width).split((2, 1))
    halves = rotated.chunk(2, -1)
    rotated = rotated * place.cos + torch.cat((-halves[1], halves[0]), -1) * place.sin
    query, key = rotated.split(1)
    layer.keys.index_copy_(2, place.position, key)
    layer.values.index_copy_(2, place.position, value)
    found = F.scaled_dot_product_attention(query, layer.keys, layer.values, place.mask)
    return F.linear(found.reshape(1, heads * width), layer.out)


def _mlp(states: torch.Tensor, layer: Layer) -> torch.Tensor:
    normed = F.rms_norm(states, states.shape[-1:], layer.mlp_norm, 1e-5)
    gate, up = F.linear(normed, layer.gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, layer.down)


class Model:
    """The part of a rank of so many; of one it is the whole model."""

    def __init__(self, shape: Shape, rank: int, size: int) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        self.embedding = torch.randn(WORDS, shape.hidden, generator=generator).to(_DTYPE)
        head = torch.randn(WORDS, shape.hidden, generator=generator)
        self.head = head.mul_(shape.hidden**-0.5).to(_DTYPE)
        self.norm = torch.ones(shape.hidden, dtype=_DTYPE)
        layers = [_layer(shape, generator, rank, size) for _ in range(shape.layers)]
        self.blocks = [layers[first : first + BLOCK] for first in range(0, shape.layers, BLOCK)]
        steps = torch.arange(0, shape.head, 2) / shape.head
        angles = torch.outer(torch.arange(CACHE), 10_000.0**-steps).repeat(1, 2)
        masks = torch.full((CACHE, CACHE), -torch.inf).triu(1).to(_DTYPE)
        self.places = [
            Place(torch.tensor([each]), angle.cos().to(_DTYPE), angle.sin().to(_DTYPE), mask[None])
            for each, (angle, mask) in enumerate(zip(angles, masks, strict=True))
        ]

    def logits(self, token: torch.Tensor, position: int, reduce: Reduce, run: Run) -> torch.Tensor:
        """Return the logits after one more token, which becomes part of the cache."""
        states = F.embedding(token, self.embedding)
        place = self.places[position]
        for block in self.blocks:
            states = run(states, place, block, reduce)
        normed = F.rms_norm(states, states.shape[-1:], self.norm, 1e-5)
        return F.linear(normed, self.head)


def _layer(shape: Shape, generator: torch.Generator, rank: int, size: int) -> Layer:
    hidden, inner = shape.hidden, shape.inner
    heads = hidden // shape.head // size

    def drawn(parts: int, outputs: int, inputs: int, gain: float = 1.0) -> torch.Tensor:
        weight = torch.randn(parts, outputs, inputs, generator=generator)
        return weight.mul_(gain * inputs**-0.5).to(_DTYPE)

    def columns(weight: torch.Tensor) -> torch.Tensor:
        return weight.chunk(size, 1)[rank].flatten(0, 1).contiguous()

    def rows(weight: torch.Tensor) -> torch.Tensor:
        return weight[0].chunk(size, 1)[rank].contiguous()

    last = (2 * shape.layers) ** -0.5  # keeps the sum of all layers' outputs as large as one
    empty = torch.zeros(1, heads, CACHE, shape.head, dtype=_DTYPE)
    return Layer(
        attention_norm=torch.ones(hidden, dtype=_DTYPE),
        qkv=columns(drawn(3, hidden, hidden)),
        out=rows(drawn(1, hidden, hidden, last)),
        mlp_norm=torch.ones(hidden, dtype=_DTYPE),
        gate_up=columns(drawn(2, inner, hidden)),
        down=rows(drawn(1, hidden, inner, last)),
        keys=empty,
        values=empty.clone(),
    )

"""A decoder-only transformer over bytes, small enough to train on a core: about 875,000 weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256  # bytes
WIDTH, LAYERS, HEADS = 128, 4, 4
CONTEXT = 128


class Block(nn.Module):
    """Causal attention and a perceptron, each behind a normalisation and around it a sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.inputs(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.second(x))


class Transformer(nn.Module):
    """Scores of the next byte at each place of a batch of sequences of bytes."""

    def __init__(self, width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.scores = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        y = self.bytes(x) + self.places(places)
        scores: torch.Tensor = self.scores(self.last(self.blocks(y)))
        return scores


def next_byte_loss(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, in nats a byte, of each byte but the first of every sequence."""
    scores = model(text[:, :-1])
    return functional.cross_entropy(scores.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1))

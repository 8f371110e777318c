"""The source text of Python's standard library: real text that every interpreter brings along.

It differs between versions of Python, so a record names the version and the digest of the text.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

LIMIT = 4 << 20  # bytes


@dataclass(frozen=True)
class Text:
    """``values`` are bytes, as a 1-d tensor of int64."""

    values: torch.Tensor
    sha256: str


def load_text(limit: int = LIMIT) -> Text:
    """The modules at the top of the library, in the order of their names, up to ``limit`` bytes."""
    library = Path(sysconfig.get_paths()["stdlib"])
    data = b"".join(path.read_bytes() for path in sorted(library.glob("*.py")))[:limit]
    values = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(torch.int64)
    return Text(values, hashlib.sha256(data).hexdigest())


def batch(text: Text, step: int, seed: int, sequences: int, length: int) -> torch.Tensor:
    """The sequences of a step, of all ranks together, at places that depend on the seed alone."""
    generator = torch.Generator().manual_seed(1_000_000 * seed + step)
    starts = torch.randint(len(text.values) - length, (sequences,), generator=generator)
    return text.values[starts[:, None] + torch.arange(length)]

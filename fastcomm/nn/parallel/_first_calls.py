"""First calls of functions that choose their code at the first call, which is not thread-safe.

oneMKL 2024.2, which torch 2.13 has on x86, chooses the code of each vector function (tanh, exp,
sqrt, ...) when it is first called. If threads make that call together, one of them may run code of
low accuracy, once: errors of 1e-4, and other bits than in the next run
(https://github.com/pytorch/pytorch/issues/188792). Replicas are such threads.
"""

from __future__ import annotations

import torch

# Functions that torch hands to MKL, now or in an older version; elsewhere a call costs nothing.
FUNCTIONS = (
    "acos",
    "asin",
    "atan",
    "cos",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "sin",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
)


def make() -> None:
    """Call each of them here, for fp32 and fp64: 10 ms the first time."""
    for dtype in (torch.float32, torch.float64):
        number = torch.full((1,), 0.5, dtype=dtype, device="cpu")
        for name in FUNCTIONS:
            getattr(torch, name)(number)

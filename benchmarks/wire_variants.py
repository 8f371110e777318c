"""The ways to train that `wire_training` compares: who reduces gradients, and how they travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import fastcomm

REFERENCE, CLAIMED = "fp32", "bf16 wire"


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        wrapper: arguments of ``fastcomm.nn.parallel.DistributedDataParallel``.
        stock: torch's own instead, over Gloo, with ``hook`` for its gradients.
        times_ranks: over how many times the number of ranks the sequences of a step are dealt.
        order: seed of the order of the data.
    """

    wrapper: Mapping[str, Any] = field(default_factory=dict)
    stock: bool = False
    hook: Callable[..., Any] | None = None
    times_ranks: int = 1
    order: int = 0

    @property
    def backend(self) -> str:
        return "gloo" if self.stock else "fastcomm"

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model under DDP, over the default group."""
        if not self.stock:
            return fastcomm.nn.parallel.DistributedDataParallel(model, **self.wrapper)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        if self.hook is not None:
            ddp.register_comm_hook(dist.group.WORLD, self.hook)
        return ddp


def unchecked_bf16_hook(state, bucket):  # type: ignore[no-untyped-def]
    """The stock hook under a name that DDP does not know, and so lets pass without NCCL.

    No annotations: DDP would compare these strings with the types.
    """
    return default_hooks.bf16_compress_hook(state, bucket)


VARIANTS = {
    REFERENCE: Variant(),
    CLAIMED: Variant({"comm_dtype": torch.bfloat16}),
    "bf16 wire, error feedback": Variant({"comm_dtype": torch.bfloat16, "error_feedback": True}),
    "fp16 wire": Variant({"comm_dtype": torch.float16}),
    "Gloo, fp32": Variant(stock=True),
    "Gloo, bf16_compress_hook": Variant(stock=True, hook=default_hooks.bf16_compress_hook),
    "Gloo, the same unchecked": Variant(stock=True, hook=unchecked_bf16_hook),
    "Gloo, fp16_compress_hook": Variant(stock=True, hook=default_hooks.fp16_compress_hook),
    "fp32, twice the ranks": Variant(times_ranks=2),
    "bf16 wire, twice the ranks": Variant({"comm_dtype": torch.bfloat16}, times_ranks=2),
    "fp32, other order": Variant(order=1),
}

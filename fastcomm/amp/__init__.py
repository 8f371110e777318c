"""Counterparts of ``torch.amp``, for `fastcomm.optim` too."""

from fastcomm.amp.grad_scaler import GradScaler

__all__ = ["GradScaler"]

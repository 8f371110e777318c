"""A choice of torch's tests that takes seconds: one or two of each kind of operation, and of DDP."""

from __future__ import annotations

SHORT: list[str] = []

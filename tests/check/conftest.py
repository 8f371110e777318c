"""Ranks that have torch loaded."""

from __future__ import annotations

from support.measured import forked

__all__ = ["forked"]

"""Fixtures that the folder shares with others."""

from __future__ import annotations

from support.measured import forked
from support.sweeps import mpiexec, sweep

__all__ = ["forked", "mpiexec", "sweep"]

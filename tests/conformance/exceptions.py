"""Tests of torch's that need not pass on fastcomm, each with the reason.

Only for tests in which torch itself compares a backend's name or reaches into Gloo, and where that
alone makes the difference. What fastcomm lacks does not belong here.
"""

from __future__ import annotations

EXCEPTIONS: dict[str, str] = {}

"""``fastcomm tune``: what suits this machine, measured.

Parts: ``candidates`` (what may be chosen), ``ranks`` (what each rank times), ``run`` (all of it,
from the calling process), ``hosts`` (of several hosts, by a job that runs there), ``tables``,
``cli``.
"""

from __future__ import annotations

from fastcomm.tune.run import Options, plan, run

__all__ = ["Options", "plan", "run"]

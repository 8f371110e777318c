"""Every Python with this folder on its path has the simulated accelerator from its start.

For programs that start ranks of their own: ``python tools/gpu_check.py --rehearse``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from sim.loading import load

load()

"""Start of a script, as by a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.patience import ENDS


def torchrun(script: Path, *arguments: object, ranks: int) -> str:
    """Run a script under torchrun, or without it for 0 ranks, and return what it prints."""
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    ended = subprocess.run(
        [sys.executable, *(words if ranks else []), str(script), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=ENDS,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout

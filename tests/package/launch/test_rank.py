"""A rank's program before it imports anything."""

from __future__ import annotations

import os
import subprocess
import sys

from support.patience import ENDS

from fastcomm._launch import processes

LATE = """
import runpy, sys
rank = runpy.run_path(sys.argv[1])
rank["die_with_parent"](int(sys.argv[2]))
print("lives", sorted({"torch", "fastcomm"} & set(sys.modules)))
"""


def test_a_rank_whose_parent_has_ended_already_ends() -> None:
    for parent, status, said in ((os.getpid(), 0, "lives []\n"), (1, 1, "")):
        words = [sys.executable, "-c", LATE, str(processes._PROGRAM), str(parent)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=ENDS)
        assert (done.returncode, done.stdout) == (status, said), done.stderr

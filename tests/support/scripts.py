"""Scripts as ranks that have torch loaded: what they do and print, not how they are started."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import sim
import torch.distributed as dist
from support import measured, places
from support.patience import ENDS

from fastcomm.__main__ import main as command
from fastcomm._measure.rank import Rank
from fastcomm._register import NAME, register


@dataclass(frozen=True)
class Ended:
    """How a script ended: its status, and what it printed."""

    status: int
    said: str
    told: str


def run(
    folder: Path,
    *words: str,
    ranks: int = 1,
    taken_over: bool = False,
    accelerator: str | None = None,
) -> list[Ended]:
    """Run a script of a folder there on ranks; with ``taken_over`` by ``fastcomm run``.

    Args:
        folder: where it lies.
        words: its name and arguments, or what follows ``fastcomm run``.
        ranks: how many processes, with the variables that torchrun sets.
        taken_over: whether fastcomm takes the place of torch's functions and of Gloo.
        accelerator: what `places.kind` returns where the script finds devices.
    """
    found: list[Ended] = measured.launched(
        _run, ranks, str(folder), words, taken_over, accelerator, timeout_s=ENDS
    )
    return found


def _run(
    _: Rank, folder: str, words: tuple[str, ...], taken_over: bool, accelerator: str | None
) -> Ended:
    places.join(accelerator)
    if accelerator == "sim":  # as for "cuda", since the name alone is for the devices of its list
        register()
        dist.Backend.backend_capability[NAME].append("sim")
    os.chdir(folder)
    with (
        contextlib.redirect_stdout(io.StringIO()) as said,
        contextlib.redirect_stderr(io.StringIO()) as told,
    ):
        try:
            if taken_over:
                status = command(["run", *words])
            else:
                sys.argv = list(words)
                sys.path.insert(0, folder)
                runpy.run_path(words[0], run_name="__main__")
                status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    sim.check()
    return Ended(status, said.getvalue(), told.getvalue())

"""docs/examples/gpus.py: stock DDP with a device for each rank gives the weights of CPU ranks."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.direct import init
from support.patience import ENDS
from support.ranks import World, run_ranks

SCRIPT = Path(__file__).resolve().parents[3] / "docs/examples/gpus.py"


def _train(world: World) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    device = init(world)
    train = runpy.run_path(str(SCRIPT))["train"]
    return train(device), train(torch.device("cpu"))


@pytest.mark.usefixtures("simulated")
def test_devices_train_to_the_weights_of_the_cpu() -> None:
    for on_devices, on_cpu in run_ranks(2, _train):
        assert all(torch.equal(a, b) for a, b in zip(on_devices, on_cpu, strict=True))


def test_as_a_script() -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=ENDS)
    assert done.returncode == 0 and "trained, weights sum to" in done.stdout, done.stderr[-3000:]

"""docs/examples/gpus.py: stock DDP with a device for each rank gives the weights of CPU ranks."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from support.direct import init
from support.on_ranks import on_ranks
from support.ranks import World
from support.torchrun import torchrun

SCRIPT = Path(__file__).resolve().parents[3] / "docs/examples/gpus.py"


@pytest.mark.usefixtures("simulated")
@on_ranks(2)
def test_devices_train_to_the_weights_of_the_cpu(world: World) -> None:
    device = init(world)
    train = runpy.run_path(str(SCRIPT))["train"]
    for here, there in zip(train(torch.device("cpu")), train(device), strict=True):
        assert torch.equal(here, there)


def test_as_a_script() -> None:
    assert "trained, weights sum to" in torchrun(SCRIPT, ranks=2)

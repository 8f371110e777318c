"""docs/examples on several ranks print what one process computes in plain torch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import scripts
from support.one_process import give_mean
from support.patience import ENDS
from support.places import Place
from support.tree import tree_sum
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DOCS = Path(__file__).resolve().parents[3] / "docs"
EXAMPLES = DOCS / "examples"
PAGE = DOCS / "gallery.md"
# Of others: 2. The loss of a pipeline does not depend on how many; of 3 one is in the middle.
RANKS = {"three_ways.py": 8, "pipeline.py": 3}


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))


def _mean_of_sums(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(net(x), x.sum(1, keepdim=True) / 4)


def _of_ranks() -> tuple[nn.Module, list[list[torch.Tensor]]]:
    """Return the model of rank 0, and for each step the batches of two ranks."""
    nets, batches = [], []
    for rank in range(2):
        torch.manual_seed(rank)
        nets.append(_layers())
        batches.append([torch.randn(32, 16) for _ in range(20)])
    return nets[0], [list(step) for step in zip(*batches, strict=True)]


def _sum_of(net: nn.Module) -> str:
    return f"{sum(p.sum().item() for p in net.parameters()):.6f}"


def ddp() -> str:
    torch.manual_seed(0)
    x = torch.randn(256, 16)
    rows = TensorDataset(x, x.sum(1, keepdim=True) / 4)
    net = _layers()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    samplers = [DistributedSampler(rows, num_replicas=2, rank=rank) for rank in range(2)]
    for epoch in range(3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        loaders = (DataLoader(rows, batch_size=16, sampler=sampler) for sampler in samplers)
        for batches in zip(*loaders, strict=True):
            give_mean(list(net.parameters()), [F.mse_loss(net(x), y) for x, y in batches])
            optimizer.step()
    with torch.no_grad():
        return f"loss of all rows {F.mse_loss(net(x), rows.tensors[1]):.6f}"


def spawn() -> str:
    net, steps = _of_ranks()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batches in steps:
        give_mean(list(net.parameters()), [_mean_of_sums(net, x) for x in batches])
        optimizer.step()
    return f"weights sum to {_sum_of(net)}"


def comm_hook() -> str:
    net, steps = _of_ranks()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parameters = list(net.parameters())
    for batches in steps:
        grads = [torch.autograd.grad(_mean_of_sums(net, x), parameters) for x in batches]
        for parameter, *own in zip(parameters, *grads, strict=True):
            parameter.grad = tree_sum([grad.bfloat16() for grad in own]).float() / 2
        optimizer.step()
    return f"weights sum to {_sum_of(net)}"


def pipeline() -> str:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(10):
        x = torch.randn(32, 16)
        parts = zip(x.chunk(8), x.roll(1, 1).tanh().chunk(8), strict=True)
        losses = [F.mse_loss(net(x), y) for x, y in parts]
        optimizer.zero_grad()
        for loss in losses:
            loss.backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            parameter.grad /= 8
        optimizer.step()
    return f"loss {torch.stack(losses).mean():.6f}"


def three_ways() -> str:
    torch.manual_seed(0)
    layers = [(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16), nn.Tanh()) for _ in range(2)]
    net = nn.Sequential(*layers[0], *layers[1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(10):
        x = torch.randn(32, 16)
        loss = F.mse_loss(net(x), x.roll(1, 1).tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return f"loss {loss:.5f}"


def fsdp() -> str:
    torch.manual_seed(0)
    shapes = nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    net = nn.Sequential(*shapes)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(20):
        x = torch.randn(64, 16)
        loss = F.mse_loss(net(x), x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    weights = sum(p.numel() for p in net.parameters())
    return f"{weights // 2} of {weights} weights, loss {loss:.5f}"


def sharded_optimizer() -> str:
    torch.manual_seed(0)
    net = _layers()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(20):
        optimizer.zero_grad()
        for x in torch.randn(2, 64, 16):
            with torch.autocast("cpu", torch.float16):
                losses = [_mean_of_sums(net, mine) for mine in x.chunk(2)]
            scaler.scale(sum(losses) / 4).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    weights = sum(p.sum().item() for p in net.parameters())
    return f"weights sum to {weights:.2f}, scale {scaler.get_scale():g}"


def tensor_parallel_decode() -> str:
    torch.manual_seed(0)
    words, head = torch.randn(2, 100, 32)
    shapes = (3, 32, 32), (32, 32), (128, 32), (32, 128)
    layers = [[torch.randn(shape) / shape[-1] ** 0.5 for shape in shapes] for _ in range(2)]
    tokens = [0]
    for _ in range(12):  # without a cache: all tokens anew
        x = words[tokens]
        for qkv, out, up, down in layers:
            normed = F.rms_norm(x, (32,))
            query, key, value = ((normed @ w.T).view(-1, 4, 8).transpose(0, 1) for w in qkv)
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + found.transpose(0, 1).flatten(1) @ out.T
            x = x + F.gelu(F.rms_norm(x, (32,)) @ up.T) @ down.T
        tokens.append(int((head @ x[-1]).argmax()))
    return f"tokens {tokens[1:]}"


WANTED: dict[str, Callable[[], str]] = {
    f"{function.__name__}.py": function
    for function in (
        *(ddp, spawn, comm_hook, pipeline, three_ways, fsdp, sharded_optimizer),
        tensor_parallel_decode,
    )
} | {"ddp_two_devices.py": spawn}
# What torch sums in another order than ranks do. All else has the same bits.
NEAR = {"three_ways.py": 2e-5, "fsdp.py": 2e-5, "sharded_optimizer.py": 1e-3}


def check_alike(said: str, wanted: str, near: float) -> None:
    """Compare lines: words and whole numbers exactly, others within so much."""
    number = r"-?\d+\.\d+"
    assert re.sub(number, "#", said) == re.sub(number, "#", wanted)
    ours, theirs = (list(map(float, re.findall(number, line))) for line in (said, wanted))
    assert ours == (pytest.approx(theirs, rel=near, abs=near) if near else theirs), (said, wanted)


def shown() -> dict[str, str]:
    """Return what the page says that rank 0 prints, by the script's name."""
    rows = re.findall(
        r"\| \[(\w+\.\w+)\]\(examples/.* \| `rank 0: (.+)` \|$", PAGE.read_text(), re.M
    )
    return dict(rows)


def ran(place: Place, folder: Path, name: str) -> str:
    """Run an example in processes that have torch loaded; return what every rank prints alike."""
    script = str(EXAMPLES / name)
    if name == "spawn.py":  # what each of its processes does
        script = "spawned.py"
        (folder / script).write_text(
            "import os, runpy\n"
            f"train = runpy.run_path({str(EXAMPLES / name)!r})['train']\n"
            "train(int(os.environ['RANK']), int(os.environ['WORLD_SIZE']))\n"
        )
    accelerator = None if place.kind == "cpu" else place.kind
    ranks = RANKS.get(name, 2)
    ended = scripts.run(folder, script, ranks=ranks, accelerator=accelerator)
    assert [each.status for each in ended] == [0] * ranks, ended
    return said_alike([each.said for each in ended])


def said_alike(lines: list[str]) -> str:
    """Return what the lines of all ranks say, if it is the same."""
    told = [re.fullmatch(r"rank (\d): (.+)\n?", line) for line in lines]
    assert [match and match[1] for match in told] == [str(i) for i in range(len(lines))], lines
    (said,) = {match[2] for match in told if match}
    return said


@pytest.mark.parametrize("name", WANTED)
def test_ranks_print_what_torch_computes(
    place: Place, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.kind == "sim" and "autocast" in (EXAMPLES / name).read_text():
        pytest.skip("simulated devices have no autocast")
    if place.kind == "cpu":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = ran(place, tmp_path, name)
    check_alike(said, WANTED[name](), 1e-2 if place.kind == "cuda" else NEAR.get(name, 0.0))
    if place.kind == "cpu":
        check_alike(said, shown()[name], max(1e-5, NEAR.get(name, 0.0)))


def test_the_page_has_a_row_for_each() -> None:
    assert {*WANTED, "notebook.ipynb"} <= shown().keys()


def _cells() -> list[dict[str, Any]]:
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_s_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("cloudpickle") is None:
        pytest.skip("cloudpickle is not installed")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cells = _cells()
    parts = [f"exec({''.join(cell['source'])!r})\nprint('----')\n" for cell in cells]
    (tmp_path / "cells.py").write_text("".join(parts))
    (ended,) = scripts.run(tmp_path, "cells.py")
    assert ended.status == 0, ended
    outputs = [
        "".join(text for output in cell["outputs"] for text in output["text"]) for cell in cells
    ]
    said = ended.said.split("----\n")[:-1]
    for ours, theirs in zip(said, outputs, strict=True):
        check_alike(ours, theirs, 1e-4)
    lines = said[1].splitlines(keepends=True)
    check_alike(said_alike(lines), spawn(), 0.0)
    check_alike(said_alike(lines), shown()["notebook.ipynb"], 1e-5)


@pytest.mark.release
def test_spawn_as_users_start_it() -> None:
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "spawn.py"), "2"],
        env={**os.environ, "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=ENDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    check_alike(said_alike(sorted(ended.stdout.splitlines())), spawn(), 0.0)

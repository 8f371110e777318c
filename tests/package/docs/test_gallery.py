"""docs/examples in one process print what plain torch computes; docs/gallery.md names them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from support import scripts
from support.places import Place, count
from torch import nn
from torch.nn import functional as F

DOCS = Path(__file__).resolve().parents[3] / "docs"
EXAMPLES = DOCS / "examples"
SHORT = 50  # lines are too many
LONGER = {
    "checkpoints.py": "three kinds of training go on from one another's checkpoints",
    "mixed_precision.py": "three whole trainings, to be compared",
}

Lines = list[str]


def rows() -> dict[str, tuple[str, Lines]]:
    """Return what the page's tables say: for each script the section, and the lines it prints."""
    found = {}
    for section in re.split(r"^## ", (DOCS / "gallery.md").read_text(), flags=re.MULTILINE)[1:]:
        for _, script, said in re.findall(r"^\| ([^|]+) \| ([^|]+) \| (.+) \|$", section, re.M):
            if name := re.search(r"\]\(examples/(\w+\.py)\)", script):
                found[name[1]] = (section.split("\n")[0], re.findall(r"`([^`]+)`", said))
    return found


def check_alike(said: Lines, wanted: Lines) -> None:
    """Compare lines: words and whole numbers exactly, others within the last digit shown."""
    number = r"\d+\.\d+"
    assert [re.sub(number, "#", line) for line in said] == [
        re.sub(number, "#", line) for line in wanted
    ]
    for ours, theirs in zip(said, wanted, strict=True):
        pairs = zip(re.findall(number, ours), re.findall(number, theirs), strict=True)
        for a, b in pairs:
            digits = len(a.partition(".")[2])
            assert float(a) == pytest.approx(float(b), abs=1.1 * 10**-digits), (said, wanted)


def sums(rows: int, generator: torch.Generator | None = None) -> Iterator[torch.Tensor]:
    """Yield inputs of steps, whose targets are a fourth of the rows' sums."""
    for _ in range(5):
        yield torch.randn(rows, 16, generator=generator)


def trained(
    model: Callable[[torch.Tensor], torch.Tensor],
    layers: nn.Module,
    batches: Iterable[torch.Tensor],
    lr: float,
) -> list[float]:
    """Return the losses of plain torch."""
    optimizer = torch.optim.SGD(layers.parameters(), lr=lr)
    losses = []
    for x in batches:
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True) / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_parallel(place: Place) -> Lines:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    losses = trained(net, net, sums(32, torch.Generator().manual_seed(1)), 0.1)
    both = f"{losses[0]:.4f}, then {losses[-1]:.4f}"
    return [f"loss {both}; on one device {both}"]


def data_parallel_block(place: Place) -> Lines:
    torch.manual_seed(0)
    shapes = (16, 32), (32, 256), (256, 32), (32, 1)
    first, wide, narrow, last = layers = nn.ModuleList(nn.Linear(*shape) for shape in shapes)

    def model(x: torch.Tensor) -> torch.Tensor:
        x = first(x).tanh()
        return last(x + narrow(wide(x).relu()))

    losses = trained(model, layers, sums(32), 0.05)
    return [f"loss {losses[0]:.4f}, then {losses[-1]:.4f}"]


def losses_in_replicas(place: Place) -> Lines:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1000))
    x, targets = torch.randn(32, 16), torch.randint(1000, (32,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(net(x), targets).backward()
        optimizer.step()
    loss = F.cross_entropy(net(x), targets).item()
    return [f"after five steps: in the replicas {loss:.4f}, of the whole batch {loss:.4f}"]


def output_elsewhere(place: Place) -> Lines:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64))
    head, x = nn.Linear(64, 1), torch.randn(32, 16)
    loss = head(net(x)).square().mean()
    grads = torch.autograd.grad(loss, list(net.parameters()))
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    several = place.kind != "cpu" and count() > 2
    there = f"{place.kind}:{count() - 1}" if several else "cpu"
    return [
        f"loss on {there}: {loss:.4f}, of one device {loss:.4f}",
        f"norm of gradients on {place.first}: {norm:.4f}, of one device {norm:.4f}",
    ]


def cpu_embedding(place: Place) -> Lines:
    torch.manual_seed(0)
    embedding = nn.Embedding(10_000, 32, sparse=True)
    rest = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))
    texts, labels = torch.randint(10_000, (64, 12)), torch.randint(4, (64,))
    sparse = torch.optim.SparseAdam(embedding.parameters(), lr=0.01)
    dense = torch.optim.Adam(rest.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(rest(embedding(texts).mean(1)), labels)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        losses.append(loss.item())
    return [
        f"loss {losses[0]:.4f}, then {losses[-1]:.4f}",
        f"torch.sparse_coo gradient on cpu: {len(texts.unique())} of 10000 rows",
    ]


def primitives(place: Place) -> Lines:
    squares = sum(3 * i * i**2 for i in range(1, 200))
    names = "scatter, gather, broadcast_coalesced, reduce_add_coalesced, fused_reduce_add_coalesced"
    return [f"as torch: {names}", f"norm {squares**0.5:.1f}, inf or NaN: False"]


def model_parallel(place: Place) -> Lines:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    loss = trained(net, net, sums(32, torch.Generator().manual_seed(1)), 0.1)[-1]
    return [f"in halves: loss {loss:.4f}", f"in one piece: loss {loss:.4f}"]


def two_stages(place: Place) -> Lines:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    return [f"loss {trained(net, net, sums(64), 0.1)[-1]:.4f}"]


WANTED: dict[str, Callable[[Place], Lines]] = {
    f"{function.__name__}.py": function
    for function in (
        *(data_parallel, data_parallel_block, losses_in_replicas, output_elsewhere),
        *(cpu_embedding, primitives, model_parallel, two_stages),
    )
}


@pytest.mark.parametrize("name", WANTED)
def test_a_script_prints_what_torch_computes(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = None if place.kind == "cpu" else place.kind
    if accelerator is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (ended,) = scripts.run(EXAMPLES, name, accelerator=accelerator)
    assert ended.status == 0, ended
    said = ended.said.splitlines()
    check_alike(said, WANTED[name](place))
    if accelerator is None:
        check_alike(said, rows()[name][1])


def test_the_page_names_every_script() -> None:
    found = rows()
    assert sorted(found) == sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert sorted(WANTED) == sorted(name for name in found if found[name][0] == "One process")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_scripts_are_short_and_say_how_they_are_started(path: Path) -> None:
    text = path.read_text()
    assert (len(text.splitlines()) < SHORT) == (path.name not in LONGER)
    docstring = text.split('"""')[1]
    started = rf" (python|torchrun) .*examples/{path.name}|docs/.+\.md has the commands"
    assert re.search(started, docstring)

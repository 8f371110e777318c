"""Models, batches and steps for tests of what shards or splits a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from support.alike import Near, assert_alike, plain
from support.one_process import give_mean
from support.ranks import World
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

if TYPE_CHECKING:
    from torch.distributed.fsdp import FullyShardedDataParallel

WIDTH, HIDDEN, CLASSES, ROWS = 8, 12, 5, 6


class Block(nn.Module):
    """A residual block whose two layers tensor parallelism splits by columns, then by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.up(self.norm(x)).tanh())
        return out


class Residual(nn.Module):
    """What a module adds to its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.inner(x)
        return out


class Blocks(nn.Module):
    """Two blocks and a head of five rows, which two and four ranks share unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def blocks() -> Blocks:
    """Return a model that is the same on every rank."""
    torch.manual_seed(11)
    return Blocks()


def loss_of(model: nn.Module, batch: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the loss on one batch, which is known by its number."""
    data = torch.Generator().manual_seed(batch)
    x = torch.randn(ROWS, 4, WIDTH, generator=data).to(dtype)
    target = torch.randn(ROWS, 4, CLASSES, generator=data)
    return nn.functional.mse_loss(model(x).float(), target)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def batches_of(world: World, steps: int) -> range:
    """Return a rank's batches, one for each step."""
    return range(world.rank, steps * world.size, world.size)


def train(
    model: nn.Module,
    batches: Sequence[int],
    make: Callable[[Any], torch.optim.Optimizer] = sgd,
    before_step: Callable[[], object] = lambda: None,
) -> list[float]:
    """Take a step for each batch, and return the losses."""
    optimizer = make(model.parameters())
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_in_pairs(
    model: nn.Module, batches: Sequence[int], part: Callable[[bool], AbstractContextManager[object]]
) -> list[float]:
    """Take a step for each two batches, and return the losses.

    What is between the two depends on ``part``, which is told whether the second begins.
    """
    optimizer = sgd(model.parameters())
    losses = []
    for number, batch in enumerate(batches):
        with part(number % 2 == 1):
            loss = loss_of(model, batch)
            loss.backward()
        losses.append(loss.item())
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def mesh_of(world: World, dimensions: int) -> DeviceMesh:
    """Return a mesh whose last dimension is for parts of a model, and one before for copies."""
    names = ("copies", "parts")
    shape = (world.size,) if dimensions == 1 else (world.size // 2, 2)
    return init_device_mesh("cpu", shape, mesh_dim_names=names[-dimensions:])


def sharded(mesh: DeviceMesh, **options: Any) -> Blocks:
    """Return the model, which fully_shard has divided."""
    from torch.distributed.fsdp import fully_shard

    model = blocks()
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, **options)
    return model


def fsdp(**options: Any) -> FullyShardedDataParallel:
    """Return the model, divided by what came before fully_shard."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FullyShardedDataParallel(
        blocks(), auto_wrap_policy=policy, device_id=torch.device("cpu"), **options
    )


def train_in_one_process(
    steps: Sequence[Sequence[int]], make: Callable[[Any], torch.optim.Optimizer] = sgd
) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Compute what ranks that share their gradients get: batches of each step, one per rank.

    Returns the losses, a list for each step, and finally the parameters.
    """
    model = blocks()
    parameters = list(model.parameters())
    optimizer = make(parameters)
    losses = []
    for batches in steps:
        of_ranks = [loss_of(model, batch) for batch in batches]
        give_mean(parameters, of_ranks)
        optimizer.step()
        losses.append([loss.item() for loss in of_ranks])
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def assert_as_in_one_process(
    found: Sequence[Any], steps: Sequence[Sequence[int]], near: Near, width: int = 1
) -> None:
    """Compare losses and parameters with `train_in_one_process`; ``width`` ranks share a batch."""
    losses, parameters = train_in_one_process(steps)
    for rank, ours in enumerate(found):
        assert_alike(ours["losses"], [of_ranks[rank // width] for of_ranks in losses], near)
        assert_alike(ours["parameters"], plain(parameters), near)

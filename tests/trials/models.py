"""Random models of layers that take and give rows of `WIDTH` numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH = 8
WORDS = 10
Make = Callable[[], nn.Module]


class Seen(nn.Module):
    """A layer that takes rows of another shape. A state beside its result is dropped."""

    def __init__(self, inner: nn.Module, *shape: int) -> None:
        super().__init__()
        self.inner, self.shape = inner, shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x.view(len(x), *self.shape))
        return (found[0] if isinstance(found, tuple) else found).reshape(len(x), WIDTH)


class Embedded(nn.Module):
    """Adds rows of a table, chosen by the input."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x.detach().double().abs() * 7).long() % WORDS
        found = self.table(words[:, :2])
        return x + (found.sum(1) if found.dim() == 3 else found).to(x.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.view(len(x), 2, 4)
        return self.inner(y, y, y)[0].reshape(len(x), WIDTH)


class Typed(nn.Module):
    """A linear layer of another type than its input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.to(self.inner.weight.dtype)).to(x.dtype)


class Complex(nn.Module):
    """Complex numbers of either width, in a matrix, a scalar and a buffer."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.turn = nn.Parameter(0.3 * torch.randn(WIDTH, WIDTH, dtype=dtype))
        self.factor = nn.Parameter(torch.tensor(1 + 1j, dtype=dtype))
        self.register_buffer("shift", torch.randn(WIDTH, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x.to(self.turn.dtype) @ self.turn) * self.factor + self.shift
        return (y.real + y.imag).to(x.dtype)


class Odd(nn.Module):
    """A scalar parameter, one without elements, a transposed one, and a buffer of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.turned = nn.Parameter(torch.randn(WIDTH, 5).t())
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.scale + self.turned.sum(0) * 0.1 + self.nothing.sum()


class Checkpointed(nn.Module):
    """Keeps no activations of a layer."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


LAYERS: dict[str, Make] = {
    "linear": _linear,
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "wide": lambda: nn.Sequential(nn.Linear(WIDTH, 900), nn.GELU(), nn.Linear(900, WIDTH)),
    "tanh": nn.Tanh,
    "dropout": lambda: nn.Dropout(0.2),
    "convolution": lambda: Seen(nn.Conv1d(1, 1, 3, padding=1), 1, WIDTH),
    "convolutions": lambda: Seen(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 2, 1),
        ),
        2, 2, 2,
    ),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm, cumulative": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(_linear()),
    "embedding": lambda: Embedded(nn.Embedding(WORDS, WIDTH, padding_idx=0)),
    "sparse embedding": lambda: Embedded(nn.Embedding(WORDS, WIDTH, sparse=True)),
    "bag of sparse": lambda: Embedded(nn.EmbeddingBag(WORDS, WIDTH, mode="sum", sparse=True)),
    "gru": lambda: Seen(nn.GRU(4, 4, batch_first=True), 2, 4),
    "lstm": lambda: Seen(nn.LSTM(2, 2, num_layers=2, batch_first=True), 4, 2),
    "attention": Attention,
    "transformer": lambda: Seen(
        nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True), 2, 4
    ),
    "bfloat16": lambda: Typed(torch.bfloat16),
    "float16": lambda: Typed(torch.float16),
    "float64": lambda: Typed(torch.float64),
    "complex64": lambda: Complex(torch.complex64),
    "complex128": lambda: Complex(torch.complex128),
    "odd": Odd,
}  # fmt: skip
TYPED = ("bfloat16", "float16", "float64", "complex64", "complex128")
TURNED = ("odd", "convolutions")
SPARSE = ("sparse embedding", "bag of sparse")


@dataclass
class Plan:
    """A model.

    Attributes:
        layers: names in `LAYERS`; "shared" is the first layer again.
        checkpoint: ``use_reentrant`` of the middle layer's checkpoint; None without one.
        frozen: one parameter in so many is frozen; 0 for none.
        unused: True if a layer is never used.
        skips: True if a layer is left out in some steps, on some ranks.
        dtype: of the model.
    """

    layers: list[str]
    checkpoint: bool | None
    frozen: int
    unused: bool
    skips: bool
    dtype: torch.dtype

    @property
    def sparse(self) -> bool:
        return any(name in SPARSE for name in self.layers)

    @property
    def turned(self) -> bool:
        """True if a parameter is not contiguous."""
        return any(name in TURNED for name in self.layers)

    @property
    def mixed(self) -> bool:
        """True if a layer may have another type than the model."""
        return any(name in TYPED for name in self.layers)


class Model(nn.Module):
    """Layers one after another, and a head."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        made: list[nn.Module] = []
        for name in plan.layers:
            layer = made[0] if name == "shared" else LAYERS[name]()
            made.append(layer if name in TYPED else layer.to(plan.dtype))
        if plan.checkpoint is not None:
            middle = len(made) // 2
            made[middle] = Checkpointed(made[middle], plan.checkpoint)
        self.layers = nn.ModuleList(made)
        self.skipped = _linear().to(plan.dtype) if plan.skips else None
        self.unused = _linear().to(plan.dtype) if plan.unused else None
        self.head = nn.Linear(WIDTH, 3).to(plan.dtype)
        for number, parameter in enumerate(self.parameters()):
            if plan.frozen and number % plan.frozen == 1:
                parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor, skip: bool = False) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        if self.skipped is not None and not skip:
            x = x + self.skipped(x)
        return {"x": x, "y": self.head(x)}


def loss_of(model: nn.Module, x: torch.Tensor, skip: bool) -> torch.Tensor:
    """Return a loss that depends on every result."""
    found = model(x, skip)
    return F.softplus(found["y"].float()).mean() + 0.1 * found["x"].float().square().mean()


def draw_plan(choice: random.Random, sparse: bool) -> Plan:
    """Draw a model; ``sparse`` allows layers with sparse gradients."""
    names = [name for name in LAYERS if sparse or name not in SPARSE]
    layers = [choice.choice(names) for _ in range(choice.randint(1, 5))]
    if choice.random() < 0.25 and layers[0] not in TYPED:
        layers.append("shared")
    dtypes = [torch.float32] * 4 + [torch.float64, torch.bfloat16]
    skips = choice.random() < 0.2
    checkpoint = choice.choice([None, None, True, False])
    return Plan(
        layers=layers,
        # DDP with find_unused_parameters supports no reentrant checkpoints.
        checkpoint=False if checkpoint and skips else checkpoint,
        frozen=choice.choice([0, 0, 2, 3]),
        unused=choice.random() < 0.2,
        skips=skips,
        dtype=choice.choice(dtypes),
    )

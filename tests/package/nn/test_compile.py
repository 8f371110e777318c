"""torch.compile and DataParallel, in either order: what replicas compute, and with which code."""

from __future__ import annotations

import copy
import itertools
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.garbage import garbage_of
from support.patience import ENDS
from torch import nn
from torch.nn import functional as F

import fastcomm
from fastcomm.nn.parallel import _compile
from fastcomm.nn.parallel.data_parallel import DataParallel, DataParallelCriterion
from fastcomm.nn.parallel.parallel_apply import parallel_apply
from fastcomm.nn.parallel.replicate import replicate

TWO = ["cpu", "cpu"]


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.first(x)).relu().mean((2, 3)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 5)
        self.lstm = nn.LSTM(5, 4, batch_first=True)
        self.after = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.before(x).tanh()
        hidden, _ = self.lstm(hidden)  # which torch.compile leaves as it is
        out: torch.Tensor = self.after(hidden)
        return out


class Named(nn.Module):
    """Takes and returns values by name; has an embedding, a plain buffer and one that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.body = nn.Linear(6, 3)
        self.register_buffer("scale", torch.full((3,), 0.5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor, *, bias: float = 0.0) -> dict[str, Any]:
        self.steps.add_(1)
        hidden = self.words(x).mean(1)
        return {"logits": self.body(hidden) * self.scale + bias, "all": [hidden, (x, None)]}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "mlp": (mlp, lambda rows: torch.randn(rows, 6)),
    "convnet": (ConvNet, lambda rows: torch.randn(rows, 2, 5, 5)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True),
        lambda rows: torch.randn(rows, 4, 6),
    ),
    "lstm": (Recurrent, lambda rows: torch.randn(rows, 4, 6)),
    "named": (Named, lambda rows: torch.randint(10, (rows, 4))),
}


class Counting:
    """A backend that runs what was traced as it is, and counts."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0
        self.threads: set[threading.Thread] = set()

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*values: Any) -> Any:
            self.runs += 1
            self.threads.add(threading.current_thread())
            return graph.forward(*values)

        return run


def the_data_parallel(module: nn.Module, devices: Any = TWO, **how: Any) -> Any:
    return torch.compile(DataParallel(module, devices), **how)


def the_module(module: nn.Module, devices: Any = TWO, **how: Any) -> Any:
    module.compile(**how)
    return DataParallel(module, devices)


def what_is_wrapped(module: nn.Module, devices: Any = TWO, **how: Any) -> Any:
    return DataParallel(torch.compile(module, **how), devices)


WAYS = [the_data_parallel, the_module, what_is_wrapped]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _loss(output: Any) -> torch.Tensor:
    output = output["logits"] if isinstance(output, dict) else output
    loss: torch.Tensor = output.square().mean()
    return loss


def _train(
    parallel: Any, module: nn.Module, batches: list[torch.Tensor], counts: list[Any], what: Any
) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = _loss(parallel(x))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        counts.append((what.graphs, what.runs) if what else None)
    return [*losses, *module.state_dict().values()]


def _check(
    name: str, way: Any, rows: tuple[int, ...] = (8, 8, 8, 8), **how: Any
) -> list[tuple[int, int]]:
    """Train, to the bit, as eager replicas do; return graphs compiled and run after each step."""
    make, draw = MODELS[name]
    torch.manual_seed(1)
    module = make()
    batches = [draw(count) for count in rows]
    plain, counting = copy.deepcopy(module), Counting()
    counts: list[Any] = []
    ours = _train(way(module, backend=counting, **how), module, batches, counts, counting)
    theirs = _train(DataParallel(plain, TWO), plain, batches, [], None)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    # Not their idents: a thread that begins after another has ended may get the same.
    assert threading.current_thread() not in counting.threads and len(counting.threads) >= 2
    return counts


def _steady(counts: list[tuple[int, int]]) -> None:
    """Check that only the first step compiled anything, and that every replica runs it."""
    assert {graphs for graphs, _ in counts} == {counts[0][0]}
    runs = [after - before for (_, before), (_, after) in itertools.pairwise(counts)]
    assert len(set(runs)) == 1 and runs[0] >= 2 and runs[0] % 2 == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_eager_replicas(name: str, way: Any) -> None:
    counts = _check(name, way)
    # The first replica shares the module's tensors: it is compiled differently, where that is
    # possible.
    assert counts[0][0] in ((1, 2) if name == "lstm" else (2,))
    _steady(counts)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(n, marks=pytest.mark.release) for n in MODELS if n != "mlp")]
)
def test_shapes_that_are_dynamic_or_not(name: str, way: Any, dynamic: bool) -> None:
    rows = (14, 14, 18, 14, 22, 18)  # no part is as long as any other size in the models
    counts = _check(name, way, rows, dynamic=dynamic)
    graphs = [graphs for graphs, _ in counts]
    if dynamic:
        assert len(set(graphs[1:])) == 1
    else:
        assert graphs[0] == graphs[1] < graphs[2] == graphs[3] < graphs[4] == graphs[5]


@pytest.mark.parametrize("way", WAYS)
def test_shapes_that_turn_out_to_be_dynamic(way: Any) -> None:
    counts = _check("mlp", way, (8, 8, 12, 8, 16, 10, 20))
    assert [graphs for graphs, _ in counts] == [2, 2, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("way", WAYS)
def test_many_models_and_many_replicas(way: Any) -> None:
    """torch.compile keeps eight versions of a frame; each model has its own, its replicas share."""
    x = torch.randn(18, 6)
    for width in range(4, 13):
        counting = Counting()
        parallel = way(mlp(width), ["cpu"] * 9, backend=counting)
        for step in range(1, 3):
            parallel(x).sum().backward()
            # On crowded cores a version is now and then made twice, but not once per replica.
            assert 2 <= counting.graphs <= 3, width
            assert counting.runs == 9 * step, width


def test_a_version_made_behind_the_look_for_one_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another replica's thread may finish compiling just when this one has found no version."""
    frame = _compile.Frame()
    made: list[int] = []
    monkeypatch.setattr(_compile, "_versions", lambda code: len(made))
    asked: list[int] = []
    compile_in_turn = frame.in_turn(lambda *rest: asked.append(1))
    attempts: list[int] = []

    def look() -> None:
        attempts.append(1)
        made[:] = [1]
        compile_in_turn(SimpleNamespace(f_code=frame.function.__code__))

    frame.call(look)
    assert len(attempts) == 2 and len(asked) == 1  # again, with what is there now


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("backend", "near"),
    [
        ("aot_eager", 1e-6),
        pytest.param(
            "inductor",
            1e-5,
            marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++"),
        ),
    ],
)
def test_with_derivatives_that_are_compiled_too(way: Any, backend: str, near: float) -> None:
    torch.manual_seed(2)
    module = mlp()
    plain, x = copy.deepcopy(module), torch.randn(8, 6)
    results = []
    for net, parallel in (
        (module, way(module, backend=backend)),
        (plain, DataParallel(plain, TWO)),
    ):
        losses = _train(parallel, net, [x] * 4, [], None)
        parallel.eval()
        with torch.no_grad():
            losses.append(parallel(x))
        results.append([*losses, parallel(x)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=near, atol=near / 10)


@pytest.mark.parametrize(
    "options",
    [
        {"loss_fn": F.mse_loss},
        {"buffers": "mean"},
        {"buffers": "sync_batchnorm"},
        {"chunk_sizes": [1, 3]},
        {"gather_outputs": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_what_ours_has_besides(options: Any) -> None:
    torch.manual_seed(4)
    module, counting = ConvNet(), Counting()
    plain = copy.deepcopy(module)
    criterion = DataParallelCriterion(F.mse_loss)
    compiled: Any = torch.compile(DataParallel(module, TWO, **options), backend=counting)
    compiled_criterion: Any = torch.compile(criterion, backend=counting)
    eager: Any = DataParallel(plain, TWO, **options)
    counts = []
    for _ in range(12):
        x, y = torch.randn(8, 2, 5, 5), torch.randn(8, 3)
        results = []
        for net, parallel, loss_of in (
            (module, compiled, compiled_criterion),
            (plain, eager, criterion),
        ):
            net.zero_grad()
            if "loss_fn" in options:
                losses = parallel(x, y)
            elif "gather_outputs" in options:
                losses = loss_of(parallel(x), y)
            else:
                losses = F.mse_loss(parallel(x), y)
            losses.mean().backward()
            grads = [p.grad for p in net.parameters()]
            results.append([losses.detach(), *grads, *net.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        counts.append((counting.graphs, counting.runs))
    _steady(counts)


def test_in_a_function_that_is_compiled() -> None:
    counting, parallel = Counting(), DataParallel(mlp(), TWO)
    x = torch.randn(8, 6)

    @torch.compile(backend=counting)
    def step(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = parallel(x * 2).square().mean()
        return out

    wanted = parallel(x * 2).square().mean()
    for _ in range(3):
        assert torch.equal(step(x), wanted)
    assert counting.graphs == 4  # before, the first replica, the other, after
    assert counting.runs == 3 * 4


def test_where_torch_compile_is_turned_off() -> None:
    counting, parallel = Counting(), DataParallel(mlp(), TWO)
    x = torch.randn(8, 6)

    class Holds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.compiler.disable(parallel)(x)
            return out

    outer: Any = torch.compile(DataParallel(Holds(), TWO), backend=counting)
    assert outer(x).shape == (8, 3)
    assert counting.runs == 0
    with torch.compiler.set_stance("force_eager"):
        assert the_data_parallel(mlp(), backend=counting)(x).shape == (8, 3)
    assert counting.runs == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_replica_that_raises(way: Any) -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x[0] > 1:  # breaks the graph
                raise KeyError("too large")
            return x + 1

    counting = Counting()
    parallel = way(Picky(), backend=counting)
    for _ in range(2):
        with pytest.raises(KeyError, match=r"replica 1 on device cpu[\s\S]+too large"):
            parallel(torch.tensor([0.0, 2.0]))
    before = counting.runs
    assert parallel(torch.tensor([0.0, 1.0])).tolist() == [1, 2]
    assert counting.runs > before


def test_parts_of_a_module_that_are_compiled() -> None:
    """By the method, by the function, and a forward method alone."""

    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    counting = Counting()
    module = nn.Sequential(nn.Linear(6, 6), mlp(), torch.compile(nn.Linear(3, 6), backend=counting))
    module.append(Tail())
    plain = copy.deepcopy(module)
    plain[2] = plain[2]._orig_mod
    module[1].compile(backend=counting)
    tail: Any = module[3]
    tail.forward = torch.compile(tail.forward, backend=counting)
    names = list(module.state_dict())
    parallel: Any = DataParallel(module, TWO)
    x = torch.randn(8, 6)
    for step in range(1, 4):
        for net, run in ((module, parallel), (plain, DataParallel(plain, TWO))):
            net.zero_grad()
            run(x).square().sum().backward()
        ours = [*(p.grad for p in module.parameters()), *module.buffers()]
        theirs = [*(p.grad for p in plain.parameters()), *plain.buffers()]
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert (counting.graphs, counting.runs) == (6, 6 * step)
    assert list(module.state_dict()) == names
    outer: Any = torch.compile(parallel, backend=counting)
    assert torch.equal(outer(x), parallel(x))


def test_replicas_of_compiled_modules_leave_no_cycles() -> None:
    module = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), ConvNet())
    module[1].compile(backend="eager")
    for _ in range(3):
        first, second = replicate(module, TWO)
        assert torch.equal(first[0](torch.ones(1, 2)), second[0](torch.ones(1, 2)))
        del first, second
    assert not garbage_of(lambda: replicate(module, TWO))


def test_the_parts_alone() -> None:
    counting, module = Counting(), mlp()
    x = torch.randn(4, 6)

    def both(x: torch.Tensor) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = parallel_apply([module, module], [x, x + 1], None, TWO)
        return outputs

    wanted = both(x)
    outputs = torch.compile(both, backend=counting)(x)
    assert all(torch.equal(a, b) for a, b in zip(outputs, wanted, strict=True))
    assert counting.runs >= 2
    whole: Any = torch.compile(fastcomm.nn.parallel.data_parallel, backend=counting)
    before = counting.runs
    assert torch.equal(whole(module.eval(), x, TWO), module(x))
    assert counting.runs >= before + 2


def test_one_device_and_none() -> None:
    x = torch.randn(4, 6)
    for devices in (["cpu"], []):
        counting, module = Counting(), mlp()
        compiled: Any = torch.compile(
            DataParallel(module, devices), backend=counting, fullgraph=not devices
        )
        assert torch.equal(compiled(x), module(x))
        assert counting.graphs == counting.runs == 1


def test_fastcomm_does_without_the_compiler() -> None:
    code = (
        "import sys, torch, fastcomm; "
        "dp = fastcomm.nn.parallel.DataParallel(torch.nn.Linear(2, 2), ['cpu', 'cpu']); "
        "dp(torch.ones(2, 2)).sum().backward(); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=ENDS)

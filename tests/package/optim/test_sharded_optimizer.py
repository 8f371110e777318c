"""ShardedOptimizer against the optimizer itself on whole, reduced, clipped gradients: the bits.

Of a step on several ranks, and of a training in one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.caught import catch
from support.on_ranks import on_ranks
from support.one_process import Uneven, give_mean, loss_of
from support.ranks import World, run_ranks
from torch import nn
from torch.distributed.tensor import DTensor

import fastcomm

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adamw fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw that decays": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


class Model(Uneven):
    """Has parameters that no step uses."""

    def __init__(self, seed: int = 3) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.unused = nn.Linear(2, 2)


def _whole(model: nn.Module, name: str, steps: int, rank: int, **options: Any) -> Any:
    """Train with all of every gradient and all of the state on every rank."""
    kind, settings = OPTIMIZERS[name]
    max_norm = options.pop("max_norm", None)
    optimizer = kind(model.parameters(), **settings)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        grads = [p.grad for p in model.parameters()]
        result = fastcomm.fused_all_reduce_(grads, **options)
        if max_norm is not None:
            fastcomm.clip_grad_norm_(model.parameters(), max_norm, total_norm=result.total_norm)
        optimizer.step()
    return optimizer


def _sharded(model: nn.Module, name: str, **options: Any) -> Any:
    kind, settings = OPTIMIZERS[name]
    return fastcomm.optim.ShardedOptimizer(model.parameters(), kind, **options, **settings)


def _train(model: nn.Module, optimizer: Any, steps: int, rank: int) -> list[float]:
    """Train on a rank's batches, and return its losses."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _same_bits(world: World) -> list[float]:
    world.init()
    norms = []
    cases: list[dict[str, Any]] = [
        {},
        {"max_norm": 0.05},
        {"comm_dtype": torch.bfloat16, "scale": 0.5, "average": False},
        {"norm_type": math.inf},
        {"norm_type": math.inf, "max_norm": 1e-7},
    ]
    for name in ("sgd", "adamw", "adamw fused", "adagrad"):
        for options in cases:
            wanted, found = Model(), Model(seed=3 + world.rank)  # made equal by the first rank
            whole = _whole(wanted, name, 3, world.rank, **options)
            sharded = _sharded(found, name, **options)
            _train(found, sharded, 3, world.rank)
            # torch's fused kernels treat the last few elements of a tensor differently.
            same = partial(torch.allclose, atol=1e-6) if "fused" in name else torch.equal
            for p, q in zip(wanted.parameters(), found.parameters(), strict=True):
                assert same(p, q), (name, options)
            assert sharded.result is not None and sharded.result.total_norm is not None
            norms.append(float(sharded.result.total_norm))
            # State: about 1/n of the elements, and the same bits.
            total = own = 0
            for (p, state), q in zip(whole.state.items(), sharded.state, strict=True):
                for key, value in state.items():
                    part = sharded.state[q][key]
                    if value.shape != p.shape or p.dim() == 0:
                        assert torch.equal(value, part)
                        continue
                    total, own = total + value.numel(), own + part.numel()
                    rows = -(-len(value) // world.size)
                    wanted_rows = value[world.rank * rows :][:rows]
                    assert same(wanted_rows, part), (name, options, key)
            rows_more = 2 * sum(p.numel() // len(p) for p in whole.state if p.dim())
            assert own <= total / world.size + rows_more, (own, total)
    return norms


@pytest.mark.parametrize(
    ("size", "transport"),
    [
        *((1, "auto"), (2, "auto"), (3, "auto"), (2, "gloo")),
        *(pytest.param(*each, marks=pytest.mark.release) for each in ((5, "auto"), (3, "gloo"))),
    ],
)
def test_a_step_has_the_bits_of_the_optimizer_itself(size: int, transport: str) -> None:
    answers = run_ranks(size, _same_bits, environment={"FASTCOMM_TRANSPORT": transport})
    assert all(answer == answers[0] for answer in answers)


STEPS = 12
CASES = [(name, norm) for name in ("nesterov", "adam", "adamw that decays") for norm in (None, 2.0)]
# For each case: the losses of every step, of one rank or of all, and the final parameters.
Trained = list[tuple[list[Any], list[torch.Tensor]]]


def _uneven() -> Uneven:
    torch.manual_seed(4)
    return Uneven()


def _train_all(world: World) -> Trained:
    world.init()
    trained: Trained = []
    for name, max_norm in CASES:
        model = _uneven()
        losses = _train(model, _sharded(model, name, max_norm=max_norm), STEPS, world.rank)
        trained.append((losses, [p.detach() for p in model.parameters()]))
    return trained


def _one_process(world: World, ranks: int, ours: bool) -> Trained:
    """Train without a group, and clip by our norm, or torch's."""
    clip: Callable[..., Any] = fastcomm.clip_grad_norm_ if ours else torch.nn.utils.clip_grad_norm_
    trained: Trained = []
    for name, max_norm in CASES:
        kind, settings = OPTIMIZERS[name]
        model = _uneven()
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = kind(parameters, **settings)
        losses, norms = [], []
        for step in range(STEPS):
            of_ranks = [loss_of(model, rank, step) for rank in range(ranks)]
            give_mean(parameters, of_ranks)
            if max_norm is not None:
                norms.append(float(clip(parameters, max_norm)))
            optimizer.step()
            losses.append([loss.item() for loss in of_ranks])
        assert max_norm is None or min(norms) < max_norm < max(norms)  # some steps clip, some not
        trained.append((losses, [p.detach() for p in model.parameters()]))
    return trained


@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_and_weights_are_those_of_one_process(ranks: int) -> None:
    """To the bit; to 1e-5 with torch's clipping, whose norm is summed in another order."""
    (expected,) = run_ranks(1, _one_process, ranks, True)
    (close,) = run_ranks(1, _one_process, ranks, False)
    for rank, trained in enumerate(run_ranks(ranks, _train_all)):
        for (losses, weights), (wanted, same), (near, _) in zip(
            trained, expected, close, strict=True
        ):
            assert losses == [step[rank] for step in wanted]
            assert losses == pytest.approx([step[rank] for step in near], rel=1e-5)
            assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
            assert losses[-1] < 0.5 * losses[0]


@on_ranks(2)
def test_schedulers_closures_and_groups(world: World) -> None:
    """Check that rates set here reach the inner optimizer; closures; groups; named parameters."""
    world.init()
    model = Model()
    groups = [
        {"params": list(model.conv.named_parameters(prefix="conv"))},
        {"params": list(model.head.named_parameters(prefix="head")), "lr": 0.5},
    ]
    optimizer = fastcomm.optim.ShardedOptimizer(groups, torch.optim.SGD, lr=0.1)
    optimizer.add_param_group({"params": list(model.last.named_parameters(prefix="last"))})
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before = [p.detach().clone() for p in (model.head.weight, model.last.weight)]

    def closure() -> float:
        optimizer.zero_grad()
        loss_of(model, world.rank, 0).backward()
        return 7.0

    assert optimizer.step(closure) == 7.0
    assert model.head.weight.grad is not None
    rows = slice(0, 4) if world.rank == 0 else slice(4, 7)
    reduced = model.head.weight.grad[rows]
    assert torch.equal(model.head.weight[rows], before[0][rows] - 0.5 * reduced)
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.05, 0.25, 0.05]
    optimizer.step()
    assert optimizer.optimizer is not None
    assert [g["lr"] for g in optimizer.optimizer.param_groups] == [0.05, 0.25, 0.05]
    assert not torch.equal(model.last.weight, before[1])


@on_ranks(2)
def test_steps_with_nan_are_skipped_on_every_rank(world: World) -> None:
    world.init()
    model = Model()
    optimizer = fastcomm.optim.ShardedOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.1, skip_nonfinite=True
    )
    kept = [p.detach().clone() for p in model.parameters()]
    loss_of(model, world.rank, 0).backward()
    if world.rank == 1:
        assert model.head.weight.grad is not None
        model.head.weight.grad[6, 3] = math.nan
    optimizer.step()
    assert optimizer.result is not None and float(optimizer.result.found_inf) == 1.0
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))


def _errors(world: World) -> str:
    world.init()
    turned = nn.Parameter(torch.zeros(4, 6).t())
    with pytest.raises(ValueError, match="cannot be divided by rows"):
        fastcomm.optim.ShardedOptimizer([turned], torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="on the meta device"):
        fastcomm.optim.ShardedOptimizer([torch.zeros(3, device="meta")], torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="max_norm needs a norm"):
        fastcomm.optim.ShardedOptimizer(
            [turned], torch.optim.SGD, norm_type=None, max_norm=1.0, lr=0.1
        )
    with pytest.raises(ValueError, match="complex"):
        fastcomm.optim.ShardedOptimizer(
            [torch.zeros(3, dtype=torch.complex64)], torch.optim.SGD, lr=0.1
        )
    model = Model()
    optimizer = fastcomm.optim.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="cannot be divided by rows"):
        optimizer.add_param_group({"params": [turned]})
    assert len(optimizer.param_groups) == 1
    kept = [p.detach().clone() for p in model.parameters()]
    loss_of(model, world.rank, 0).backward()
    if world.rank == 1:
        model.scale.grad = None
    caught = catch(optimizer.step)
    assert caught.kind == "CollectiveMismatchError", caught
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))
    return caught.text


def test_other_gradients_on_another_rank_are_an_error() -> None:
    for text in run_ranks(2, _errors):
        assert "fused_reduce_scatter" in text and "7 gradients" in text and "6 gradients" in text


def _full(optimizer: Any) -> dict[str, torch.Tensor]:
    """Return every tensor of a state by name, put together."""
    return {
        f"{number}.{name}": (v.full_tensor() if isinstance(v, DTensor) else v).clone()
        for number, values in optimizer.state_dict()["state"].items()
        for name, v in values.items()
    }


@on_ranks(2, 3)
def test_states_load_in_parts_and_whole(world: World) -> None:
    world.init()
    model = Uneven()
    optimizer = _sharded(model, "adamw")
    _train(model, optimizer, 3, world.rank)
    found = _full(optimizer)
    in_parts, whole = optimizer.state_dict(), optimizer.state_dict()
    parts = [v for values in in_parts["state"].values() for v in values.values()]
    assert any(isinstance(v, DTensor) for v in parts)
    whole["state"] = {
        k: {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in s.items()}
        for k, s in whole["state"].items()
    }
    for state in (in_parts, whole):
        other = _sharded(model, "adamw")
        other.load_state_dict(state)
        values = _full(other)
        assert values.keys() == found.keys()
        assert all(torch.equal(values[k], found[k]) for k in found)


@on_ranks(2, group_timeout=15)
def test_states_with_other_placements_load(world: World) -> None:
    """Check that all ranks gather or none does, even where some ranks' rows seem to fit."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    world.init()
    model = nn.Linear(1, 1)
    optimizer = _sharded(model, "adamw")
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    mesh = init_device_mesh("cpu", (world.size,))
    for entry in state["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            whole = entry[name].full_tensor() + 1
            entry[name] = distribute_tensor(whole, mesh, [Shard(whole.dim() - 1)])
    optimizer.load_state_dict(state)
    for value in _full(optimizer).values():
        assert bool((value >= 1).all())
    for parameter, own in optimizer._rows.items():
        for value in optimizer.state[parameter].values():
            assert value.untyped_storage().nbytes() <= max(4, 4 * own.numel())


@on_ranks(2)
def test_what_would_train_otherwise_is_refused(world: World) -> None:
    world.init()
    model = nn.Linear(3, 3)
    wrapped = nn.parallel.DistributedDataParallel(model)
    caught = catch(fastcomm.optim.ShardedOptimizer, model.parameters(), torch.optim.SGD, lr=0.1)
    assert caught.kind == "ValueError" and "reduced twice" in caught.text, caught
    del wrapped
    optimizer = fastcomm.optim.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped(torch.ones(1, 3)).sum().backward()
    caught = catch(optimizer.step)
    assert caught.kind == "ValueError" and "reduced twice" in caught.text, caught
    added = nn.Linear(3, 3)
    of_other = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    optimizer = fastcomm.optim.ShardedOptimizer(added.parameters(), torch.optim.SGD, lr=0.1)
    for group, words in (
        ({"params": list(of_other.parameters())}, "reduced twice"),
        ({"params": [nn.Parameter(torch.ones(2)), torch.ones(2, device="meta")]}, "meta device"),
        ({"params": [torch.ones(4, 4).t()[::2]]}, "rows"),
    ):
        caught = catch(optimizer.add_param_group, group)
        assert words in caught.text, caught
    added(torch.ones(1, 3)).sum().backward()
    optimizer.step()  # what was refused is forgotten
    optimizer.add_param_group({"params": [late := nn.Parameter(torch.ones(2))]})
    late.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(late.detach(), torch.full((2,), 0.9))
    for bad in (-1.0, math.nan):
        refused = partial(fastcomm.optim.ShardedOptimizer, max_norm=bad, lr=0.1)
        caught = catch(refused, nn.Linear(3, 3).parameters(), torch.optim.SGD)
        assert caught.kind == "ValueError" and "from 0 up" in caught.text, caught
    made = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    assert catch(fastcomm.optim.ShardedOptimizer, model.parameters(), made).kind == "TypeError"
